"""Prompt tokens and chosen tokens of a rollout, as a picture in TensorBoard."""

from collections.abc import Sequence
from typing import Any

import lightning as L
from lightning.pytorch.loggers import TensorBoardLogger

from lgym.callbacks.token_picture import ShownToken, token_picture
from lgym.types import TokenTrace


class TokenTraceLogger(L.Callback):
    """Draws some episodes of a rollout to TensorBoard's images: prompt tokens, forced tokens, and chosen
    tokens with their advantages."""

    def __init__(self, every_n_rollouts: int = 5) -> None:
        """
        Args:
            every_n_rollouts: interval.
        """
        self.every_n_rollouts = every_n_rollouts
        self._episodes: Sequence[Sequence[TokenTrace]] = ()

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx == 0:
            self._episodes = batch.token_traces

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        episodes = self._episodes
        due = trainer.current_epoch % self.every_n_rollouts == 0
        if episodes and due and isinstance(trainer.logger, TensorBoardLogger):
            titles = [f"Rollout {trainer.current_epoch + 1}, episode {i + 1}" for i in range(len(episodes))]
            picture = token_picture([shown_tokens(turns, pl_module.tokenizer) for turns in episodes], titles)
            trainer.logger.experiment.add_image("tokens", picture, trainer.global_step, dataformats="HWC")


def shown_tokens(turns: Sequence[TokenTrace], tokenizer: Any) -> list[ShownToken]:
    """An episode's tokens in reading order; a prompt that extends the turn before contributes its new tokens
    only."""
    shown: list[ShownToken] = []
    context: tuple[int, ...] = ()
    for turn in turns:
        known = len(context) if turn.prompt_ids[: len(context)] == context else 0
        shown += [ShownToken(tokenizer.decode([token_id]), "prompt") for token_id in turn.prompt_ids[known:]]
        for token_id, chosen, logprob, advantage in zip(
            turn.token_ids, turn.action_mask, turn.logprobs, turn.advantages, strict=True
        ):
            text = tokenizer.decode([token_id])
            shown.append(
                ShownToken(text, "sampled", advantage, logprob) if chosen else ShownToken(text, "forced")
            )
        context = turn.prompt_ids + turn.token_ids
    return shown
