"""Episodes as people read them: in TensorBoard while training, as JSON lines from `predict`."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lightning as L

from lgym import distributed
from lgym.callbacks.log_media import log_text, say_what_is_missing
from lgym.plain_text import as_json, escape_control_chars, truncate_middle
from lgym.terminal import say
from lgym.types import Episode

CELL = 4000  # characters of one text in TensorBoard
EPISODES_FILE = "episodes.jsonl"


@dataclass(eq=False)
class EpisodeLogger(L.Callback):
    """Writes some episodes of a rollout to TensorBoard's text tab, and to `episodes.jsonl` in the run's
    folder, an episode per line with the number of its rollout. Those of the last rollout are among them.

    Args:
        every_n_rollouts: interval; `data.log_episodes_per_rollout` is the number of episodes.
    """

    every_n_rollouts: int = 5
    _logged: int = 0

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.is_global_zero:
            say_what_is_missing(trainer.loggers)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.current_epoch % self.every_n_rollouts == 0:
            self._log(trainer, trainer.current_epoch + 1)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.current_epoch > self._logged:
            self._log(trainer, trainer.current_epoch)

    def _log(self, trainer: L.Trainer, rollout: int) -> None:
        self._logged = rollout
        episodes = getattr(trainer.datamodule, "transcripts", ())  # type: ignore[attr-defined]
        folder = Path(trainer.log_dir or trainer.default_root_dir)  # every process has to ask
        if not episodes or not trainer.is_global_zero:
            return
        log_text(trainer, "transcripts", as_markdown(episodes))
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / EPISODES_FILE).open("a", encoding="utf-8") as file:
            file.writelines(as_json({"rollout": rollout, **asdict(episode)}) + "\n" for episode in episodes)


class TranscriptWriter(L.Callback):
    """Writes the episodes of `predict` to `transcripts.jsonl` in the run's folder, an episode per line."""

    def on_predict_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        path = Path(trainer.log_dir or trainer.default_root_dir) / "transcripts.jsonl"
        predictions: Any = trainer.predict_loop.predictions
        episodes = [
            episode
            for batches in distributed.all_gather_object(predictions)
            for batch in batches
            for episode in batch
        ]
        if trainer.is_global_zero:
            records = [{**asdict(episode), "return": episode.episode_return} for episode in episodes]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(as_json(record) + "\n" for record in records), encoding="utf-8")
            say(f"{len(episodes)} episodes written to {path}")


def as_markdown(episodes: Sequence[Episode]) -> str:
    """A table per episode: observations, answers with their probabilities, values and rewards."""
    parts = [f"**System prompt**\n\n{_cell(episodes[0].system_prompt)}"]
    for episode in episodes:
        rows = [
            f"| {_cell(turn.observation_text)} | {_cell(turn.response_text)} | "
            f"{_probabilities(turn.probabilities)} | {'' if turn.value is None else f'{turn.value:+.3f}'} | "
            f"{turn.reward:+g} |"
            for turn in episode.turns
        ]
        parts.append(
            f"**Seed {episode.seed}: return {episode.episode_return:+g}, "
            f"{'terminated' if episode.terminated else 'truncated'}**\n\n"
            "| observation | answer | probabilities | value | reward |\n|---|---|---|---|---|\n"
            + "\n".join(rows)
        )
    return "\n\n".join(parts)


def _probabilities(probabilities: dict[str, float]) -> str:
    likeliest = sorted(probabilities.items(), key=lambda item: -item[1])[:5]
    return ", ".join(f"{_cell(text)} {p:.2f}" for text, p in likeliest)


def _cell(text: str) -> str:
    """Text as a table cell in which nothing is markup, its middle left out beyond `CELL` characters."""
    text = re.sub(r"[\\`*_{}\[\]<>|#~]", r"\\\g<0>", escape_control_chars(truncate_middle(text, CELL)))
    return text.replace("&", "&amp;").replace("\n", " ⏎ ")
