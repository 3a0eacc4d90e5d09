"""What the model was fed and what it chose, token by token, as a picture in TensorBoard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lightning as L
from lightning.pytorch.loggers import TensorBoardLogger

from lgym.callbacks.token_picture import ShownToken, token_picture
from lgym.types import TaughtTurn


class TokenTraceLogger(L.Callback):
    """Draws some episodes of a rollout to TensorBoard's images: prompts, forced and chosen tokens with their advantages."""

    def __init__(self, every_n_rollouts: int = 5) -> None:
        """
        Args:
            every_n_rollouts: how often.
        """
        self.every_n_rollouts = every_n_rollouts

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        episodes: Sequence[Sequence[TaughtTurn]] = getattr(pl_module, "taught", ())
        if (
            trainer.current_epoch % self.every_n_rollouts
            or not isinstance(trainer.logger, TensorBoardLogger)
            or not episodes
        ):
            return
        tokenizer = pl_module.tokenizer
        titles = [f"Rollout {trainer.current_epoch + 1}, episode {number + 1}" for number in range(len(episodes))]
        picture = token_picture([shown_tokens(turns, tokenizer) for turns in episodes], titles)
        trainer.logger.experiment.add_image("tokens", picture, trainer.global_step, dataformats="HWC")


def shown_tokens(turns: Sequence[TaughtTurn], tokenizer: Any) -> list[ShownToken]:
    """An episode's tokens in reading order; of a prompt that goes on from the turn before only what is new."""
    shown: list[ShownToken] = []
    fed: tuple[int, ...] = ()
    for turn in turns:
        known = len(fed) if turn.prompt_ids[: len(fed)] == fed else 0
        shown += [ShownToken(tokenizer.decode([token]), "prompt", None, None) for token in turn.prompt_ids[known:]]
        for token, chosen, logprob, advantage in zip(turn.ids, turn.mask, turn.logprobs, turn.advantages, strict=True):
            text = tokenizer.decode([token])
            shown.append(
                ShownToken(text, "sampled", advantage, logprob) if chosen else ShownToken(text, "forced", None, None)
            )
        fed = turn.prompt_ids + turn.ids
    return shown
