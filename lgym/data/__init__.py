"""What happened: live episodes, recorded token for token."""

from lgym.data.datamodule import RolloutDataModule
from lgym.data.dataset import RolloutDataset

__all__ = ["RolloutDataModule", "RolloutDataset"]
