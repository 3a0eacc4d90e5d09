"""Episodes as people read them: in TensorBoard while training, as JSON lines from `predict`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.loggers import TensorBoardLogger

from lgym import ranks
from lgym.plain_text import as_json, truncate_middle
from lgym.terminal import escape_control_chars, say
from lgym.types import Episode

CELL = 4000
"""Characters of one text in TensorBoard."""


class EpisodeLogger(L.Callback):
    """Writes some episodes of a rollout to TensorBoard's text tab."""

    def __init__(self, every_n_rollouts: int = 5) -> None:
        """
        Args:
            every_n_rollouts: how often; how many episodes is `data.log_episodes_per_rollout`.
        """
        self.every_n_rollouts = every_n_rollouts

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.current_epoch % self.every_n_rollouts or not isinstance(trainer.logger, TensorBoardLogger):
            return
        episodes = getattr(trainer.datamodule, "transcripts", ())  # type: ignore[attr-defined]
        if episodes:
            trainer.logger.experiment.add_text("transcripts", as_markdown(episodes), trainer.global_step)


class TranscriptWriter(L.Callback):
    """Writes what `predict` played to `transcripts.jsonl` in the run's folder, an episode a line."""

    def on_predict_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        path = Path(trainer.log_dir or trainer.default_root_dir) / "transcripts.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        predictions: Any = trainer.predict_loop.predictions
        episodes = [episode for batches in ranks.everyone(predictions) for batch in batches for episode in batch]
        if not trainer.is_global_zero:
            return
        with path.open("w", encoding="utf-8") as file:
            for episode in episodes:
                file.write(as_json(as_record(episode)) + "\n")
        say(f"{len(episodes)} episodes written to {path}")


def as_record(episode: Episode) -> dict[str, Any]:
    """An episode as plain data, its return included."""
    return {**asdict(episode), "return": episode.episode_return}


def as_markdown(episodes: Sequence[Episode]) -> str:
    """A table an episode: what the model read, what it answered with which probability, what it got."""
    parts = [f"**System prompt**\n\n{_plain(episodes[0].system_prompt)}"]
    for episode in episodes:
        end = "terminated" if episode.terminated else "truncated"
        rows = [
            f"| {_plain(turn.observation_text)} | {_plain(turn.response_text)} | {_probabilities(turn.probabilities)} "
            f"| {'' if turn.value is None else f'{turn.value:+.3f}'} | {turn.reward:+g} |"
            for turn in episode.turns
        ]
        parts.append(
            f"**Seed {episode.seed}: return {episode.episode_return:+g}, {end}**\n\n"
            "| observation | answer | probabilities | value | reward |\n|---|---|---|---|---|\n" + "\n".join(rows)
        )
    return "\n\n".join(parts)


def _probabilities(probabilities: dict[str, float]) -> str:
    likely = sorted(probabilities.items(), key=lambda item: -item[1])[:5]
    return ", ".join(f"{_plain(text)} {p:.2f}" for text, p in likely)


def _plain(text: str) -> str:
    """Text as one table cell, its middle left out beyond `CELL` characters: nothing in it is markup, or acts otherwise."""
    text = escape_control_chars(truncate_middle(text, CELL))
    for character in "\\`*_{}[]<>|#~":
        text = text.replace(character, f"\\{character}")
    return text.replace("&", "&amp;").replace("\n", " ⏎ ")
