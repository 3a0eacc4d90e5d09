"""Texts and pictures for whatever loggers a run has."""

import lightning as L
import numpy as np
from lightning.pytorch.loggers import MLFlowLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.loggers.logger import Logger

from lgym.terminal import say

MEDIA_LOGGERS = (TensorBoardLogger, WandbLogger, MLFlowLogger)


def log_text(trainer: L.Trainer, tag: str, text: str) -> None:
    """Hands a text in Markdown to each of the trainer's loggers that shows texts."""
    step = trainer.global_step
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            logger.experiment.add_text(tag, text, step)
        elif isinstance(logger, WandbLogger):
            logger.log_text(tag, columns=["step", "text"], data=[[str(step), text]], step=step)
        elif isinstance(logger, MLFlowLogger):
            logger.experiment.log_text(logger.run_id, text, f"{tag}/{step:08d}.md")


def log_picture(trainer: L.Trainer, tag: str, pixels: np.ndarray) -> None:
    """Hands a picture to each of the trainer's loggers that shows pictures.

    Args:
        trainer: of the run.
        tag: the picture's name.
        pixels: [height, width, 3] of uint8.
    """
    step = trainer.global_step
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            logger.experiment.add_image(tag, pixels, step, dataformats="HWC")
        elif isinstance(logger, WandbLogger):
            logger.log_image(tag, images=[pixels], step=step)
        elif isinstance(logger, MLFlowLogger):
            logger.experiment.log_image(logger.run_id, pixels, artifact_file=f"{tag}/{step:08d}.png")


def say_what_is_missing(loggers: list[Logger]) -> None:
    """Names the loggers that show neither texts nor pictures, and those that can."""
    for logger in loggers:
        if not isinstance(logger, MEDIA_LOGGERS):
            say(
                f"{type(logger).__name__} keeps numbers alone: transcripts are in episodes.jsonl, pictures "
                "nowhere. TensorBoardLogger, WandbLogger and MLFlowLogger show both."
            )
