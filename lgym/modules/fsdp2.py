"""The strategy `fsdp2`: DDP, with the frozen weights cut up among the devices."""

from typing import Any

from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry

from lgym import distributed
from lgym.models import LLMConfig
from lgym.models.sharding import exclude_from_ddp, shard_frozen_weights
from lgym.types import ConfigError


class FSDP2Strategy(DDPStrategy):
    """Trains a model whose frozen weights do not fit one device: see `lgym.models.sharding`.

    What is trained is whole on every device, so that checkpoints, clipping and exports are those of DDP.
    """

    def require_shardable(self, config: LLMConfig) -> None:
        """Raises `ConfigError` where a model has nothing to cut up, or weights that cannot be."""
        if config.lora is None:
            raise ConfigError(
                "trainer.strategy fsdp2 cuts up the frozen weights, and `lora: null` freezes none. Train "
                "adapters (`lora: {}`), or use `trainer.strategy: ddp`."
            )
        if config.quantization is not None:
            raise ConfigError(
                f"trainer.strategy fsdp2 takes no quantized weights, and quantization is "
                f"{config.quantization}: leave one of the two out."
            )

    def model_to_device(self) -> None:
        """Cut the weights up before anything comes to the device, which need not hold them all."""
        module: Any = self.lightning_module
        exclude_from_ddp(module, shard_frozen_weights(module.policy.llm, self.root_device.type))
        super().model_to_device()

    def teardown(self) -> None:
        distributed.keep_in(None)
        super().teardown()


StrategyRegistry.register("fsdp2", FSDP2Strategy, description="DDP with the frozen weights sharded by FSDP2")
