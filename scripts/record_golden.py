"""Record golden values: what every algorithm computes with every policy, step by step, to compare with after
a change.

    python scripts/record_golden.py              # writes tests/golden/tiny.json, in a minute
    python scripts/record_golden.py --blackjack  # writes tests/golden/blackjack.json, of the real model

Each case trains the tiny random model of the tests for a few rollouts of a small game, and records the loss
and the gradient norm of every optimizer step, and the return, the entropy and the explained variance of every
rollout.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import lightning as L
import torch
import transformers

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
sys.path.insert(0, str(ROOT / "tests"))

from helpers import tiny  # noqa: E402
from lgym import modules, policies  # noqa: E402
from lgym.agents import TextAgent  # noqa: E402
from lgym.data import BestEpisodeBuffer, JsonlDemonstrations, RolloutDataModule  # noqa: E402
from lgym.models import LLMConfig, LoraSettings  # noqa: E402
from lgym.modules import CriticConfig, LossConfig, SFTConfig  # noqa: E402
from lgym.types import ParsedAction  # noqa: E402

ROLLOUTS = 2
PER_ROLLOUT = {
    "return": ("rollout/return_mean",),
    "entropy": ("policy/entropy",),
    "kl": ("policy/approx_kl", "policy/old_kl"),
    "explained_variance": ("value/explained_variance",),
}


class Game(gymnasium.Env):
    """A few turns: 1 for naming the letter that is shown and a half less for another; the letter c, when
    shown and named, ends the episode."""

    observation_space = gymnasium.spaces.Discrete(3)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self._shown = int(self.np_random.integers(3))
        return self._shown, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        right = int(action) == self._shown
        over = right and self._shown == 2
        self._shown = int(self.np_random.integers(3))
        return self._shown, 1.0 if right else -0.5, over, False, {}


class Player(TextAgent):
    """Reads the first letter from a to z, in thirds of the alphabet; so about every second random text is an
    action."""

    system_prompt = "Name it."
    actions = ("a", "bb", "c c")
    fallback = "penalize"
    penalty = -0.25

    def format_observation(self, observation: Any) -> str:
        return "abc"[int(observation)]

    def extract_action(self, text: str) -> ParsedAction:
        if text in self.actions:
            return ParsedAction(self.actions.index(text))
        letters = [ord(letter) - 97 for letter in text.lower() if "a" <= letter <= "z"]
        return ParsedAction(letters[0] // 9) if letters else ParsedAction.failure("no letter")


def candidates(**changes: Any) -> Any:
    return policies.CandidatePolicy(**{"temperature": 3.0, **changes})


def generation(**changes: Any) -> Any:
    return policies.GenerationPolicy(**{"max_new_tokens": 4, **changes})


def think(**changes: Any) -> Any:
    return policies.ThinkPolicy(
        **{"max_reasoning_tokens": 3, "answer_prefix": ":", "choice_temperature": 3.0, **changes}
    )


def cases(folder: Path) -> dict[str, tuple[Any, dict[str, Any]]]:
    """The module of each case, and what its data has otherwise than the others."""
    llm = LLMConfig(model=str(folder / "model"), lora=LoraSettings(r=4), value_hidden_size=16)
    examples = folder / "examples.jsonl"
    examples.write_text('{"observation": "a", "response": "a"}\n{"observation": "b", "response": "bb"}\n')
    groups = {"group_size": 4}
    one_pass = {"update_epochs": 1}
    demonstrations = {"demonstrations": [JsonlDemonstrations(str(examples))], "sft_batch_size": 4}
    everything: dict[str, Any] = {"entropy_coef": 0.02, "old_kl_coef": 0.1, "clip_high": 0.3}
    braked: dict[str, Any] = {"entropy_coef": 0.01, "old_kl_coef": 0.3, "target_kl": 0.2}
    bonus = LossConfig(entropy_coef=0.003, old_kl_coef=0.1, old_kl_target=0.02)
    free = LossConfig(clip_low=None, clip_high=None)  # no step is left out, each has a loss
    cold = CriticConfig()
    supervised = SFTConfig(coef=0.5, rollouts=1)
    made: dict[str, tuple[Any, dict[str, Any]]] = {
        "PPO, candidates": (modules.PPO(llm=llm, loss=bonus), {}),
        "PPO, candidates, length by tokens": (
            modules.PPO(llm=llm, policy=candidates(length_normalization="token"), loss=bonus),
            {"history": 1},
        ),
        "PPO, candidates, constrained decoding": (
            modules.PPO(llm=llm, policy=candidates(constrained_decoding=True), loss=bonus),
            {},
        ),
        "PPO, candidates, reference and clipped values": (
            modules.PPO(
                llm=llm,
                policy=candidates(),
                loss=LossConfig(**{**braked, "target_kl": None}, kl_coef=0.1),
                critic=CriticConfig(value_clip=0.2),
            ),
            {"turns_per_rollout": 24, "episodes_per_rollout": None},
        ),
        "PPO, candidates, demonstrations": (
            modules.PPO(llm=llm, policy=candidates(), loss=bonus, sft=supervised),
            demonstrations,
        ),
        "PPO, candidates, brake": (
            modules.PPO(
                llm=llm, policy=candidates(), loss=LossConfig(**{**braked, "target_kl": 1e-6}), critic=cold
            ),
            {},
        ),
        "PPO, candidates, detached values": (
            modules.PPO(
                llm=llm,
                policy=candidates(),
                loss=bonus,
                critic=CriticConfig(value_warmup=1, detach_value=True),
                whiten_advantages=False,
                gae_lambda=0.5,
                gamma=0.9,
            ),
            {"history": "full"},
        ),
    }
    for name, make in {"generation": generation, "think": think}.items():
        for level in ("turn", "token"):
            made[f"PPO, {name}, advantages by {level}"] = (
                modules.PPO(llm=llm, policy=make(), loss=LossConfig(), critic=cold, advantage_level=level),
                {},
            )
        made[f"PPO, {name}, everything on"] = (
            modules.PPO(
                llm=llm,
                policy=make(),
                loss=LossConfig(**everything),
                critic=CriticConfig(value_warmup=1),
            ),
            {"history": "full", "turns_per_rollout": 24, "episodes_per_rollout": None},
        )
    for name, make in {"candidates": candidates, "generation": generation, "think": think}.items():
        made[f"A2C, {name}"] = (modules.A2C(llm=llm, policy=make(), loss=free), one_pass)
        made[f"REINFORCE, {name}"] = (modules.REINFORCE(llm=llm, policy=make(), loss=free), one_pass)
        made[f"GRPO, {name}"] = (modules.GRPO(llm=llm, policy=make()), groups)
        made[f"RLOO, {name}"] = (modules.RLOO(llm=llm, policy=make()), groups)
        made[f"GiGPO, {name}"] = (modules.GiGPO(llm=llm, policy=make()), groups)
    made |= {
        "GRPO, generation, reference in the loss": (
            modules.GRPO(
                llm=llm,
                policy=generation(),
                loss=LossConfig(kl_coef=0.1, loss_aggregation="token_mean", **everything),
            ),
            groups,
        ),
        "GRPO, generation, reference in the reward": (
            modules.GRPO(
                llm=llm,
                policy=generation(),
                loss=LossConfig(kl_coef=0.1, kl_in="reward", loss_aggregation="max_length"),
                scale_by_std=False,
            ),
            {**groups, "dynamic_sampling_groups": 2},
        ),
        "GRPO, think, demonstrations and best episodes": (
            modules.GRPO(llm=llm, policy=think(), sft=supervised),
            {**groups, **demonstrations, "self_imitation": BestEpisodeBuffer(top_fraction=0.5)},
        ),
    }
    return made


class Record(L.Callback):
    """Keeps the numbers of a run, and writes them where it runs."""

    FILE = "golden.json"

    def __init__(self) -> None:
        self.values: dict[str, list[float]] = {"loss": [], "gradient norm": []}

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        norm = torch.nn.utils.get_total_norm([p.grad for p in pl_module.parameters() if p.grad is not None])
        self.values["gradient norm"].append(float(norm))

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.values["loss"].append(float(outputs["loss"]))

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        for name, metrics in PER_ROLLOUT.items():
            for metric in metrics:
                if metric in trainer.callback_metrics:
                    self.values.setdefault(name, []).append(float(trainer.callback_metrics[metric]))

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        (Path(trainer.default_root_dir) / self.FILE).write_text(json.dumps(self.values))


def run(module: Any, changes: dict[str, Any], folder: Path) -> dict[str, list[float]]:
    """The numbers of one case."""
    L.seed_everything(0, verbose=False)
    # Steps far enough that ratios reach their clips. With the usual eps of 1e-8 the sign of a gradient that
    # is rounding alone would make a whole step.
    module.given_optimizer = partial(torch.optim.AdamW, lr=5e-3, eps=1e-3)
    module.make_lr_scheduler = None  # whose warm-up would last for most of the rollouts
    settings = {
        "num_envs": 8,
        "episodes_per_rollout": 16,
        "update_epochs": 2,
        "minibatch_size": 16,
        "max_episode_steps": 3,
        "log_episodes_per_rollout": 0,
    }
    data = RolloutDataModule(env="Golden-v0", agent=Player(), **{**settings, **changes})
    record = Record()
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=ROLLOUTS,
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=[record],
    )
    trainer.fit(module, datamodule=data)
    return record.values


def tiny_values(names: list[str] | None = None) -> dict[str, Any]:
    """The golden values of the tiny model, of all cases or those named."""
    if "Golden-v0" not in gymnasium.registry:
        gymnasium.register("Golden-v0", Game)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(name)
        tiny.save(folder / "model")
        made = cases(folder)
        return {case: run(*made[case], folder) for case in (names or made)}


def blackjack_values() -> dict[str, Any]:
    """The golden values of the first two rollouts of configs/blackjack.yaml, as the command line runs it."""
    from lgym.cli import main as lgym

    sys.path.insert(0, str(Path(__file__).parent))  # for the class path of `Record`
    with tempfile.TemporaryDirectory() as name:
        options = {
            "config": ROOT / "configs" / "blackjack.yaml",
            "trainer.default_root_dir": name,
            "trainer.max_epochs": 2,
            "trainer.check_val_every_n_epoch": 100,
            "trainer.callbacks": "record_golden.Record",
            "trainer.accelerator": "cpu",
            "trainer.precision": "32-true",  # of processors that multiply bf16 too, which round differently
        }
        lgym(["fit", *(f"--{option}={value}" for option, value in options.items())])
        return {"PPO, candidates, Blackjack": json.loads((Path(name) / Record.FILE).read_text())}


def versions() -> dict[str, str]:
    """What the numbers were recorded with."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "lightning": L.__version__,
        "machine": platform.machine(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--blackjack",
        action="store_true",
        help="the real model's Blackjack in place of the tiny model's cases",
    )
    parser.add_argument("--out", type=Path, help="write there instead")
    args = parser.parse_args()
    torch.set_num_threads(1)
    values = blackjack_values() if args.blackjack else tiny_values()
    path = args.out or GOLDEN / ("blackjack.json" if args.blackjack else "tiny.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"versions": versions(), "values": values}, indent=1) + "\n")


if __name__ == "__main__":
    main()
