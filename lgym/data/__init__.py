"""What happened: live episodes, recorded token for token; and what else there is to learn from."""

from lgym.data.datamodule import RolloutDataModule
from lgym.data.dataset import RolloutDataset
from lgym.data.demonstrations import Expert, JsonLines
from lgym.data.replay import BestEpisodes

__all__ = ["BestEpisodes", "Expert", "JsonLines", "RolloutDataModule", "RolloutDataset"]
