"""The contents of a report: what is in a run's folder, as data."""

import base64
import json
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lgym.callbacks.episode_logger import EPISODES_FILE
from lgym.callbacks.provenance import RUN_FILE, read_run
from lgym.cli.run_metrics import TURNS, by_step, over_turns, scalars_of
from lgym.plain_text import truncate_middle
from lgym.types import ConfigError

POINTS = 1000
"""Most points of a curve; of more, every so many are kept."""

EPISODES, LONGEST_TEXT = 40, 4000
"""Most episodes of a run, the newest, and characters of a text in them."""

TURNS_SHOWN = 200
"""Most turns of an episode."""


def run_contents(run: Path, room: int) -> dict[str, Any]:
    """Everything that the page shows of a run.

    Args:
        run: its folder.
        room: bytes for its pictures.

    Raises:
        ConfigError: if it is no run's folder.
    """
    if not (run / RUN_FILE).exists():
        raise ConfigError(f"{run} has no {RUN_FILE}: give the folder of a run of `lgym fit`.")
    events = EventAccumulator(str(run), size_guidance={"scalars": 0, "images": 0, "tensors": 0})
    events.Reload()
    metrics = scalars_of(events)
    turns = by_step(metrics.get(TURNS, ()))
    return {
        "name": f"{run.parent.name}/{run.name}",
        "about": read_run(run),
        "curves": {
            tag: thinned([point for point in over_turns(entries, turns) if isfinite(point[1])])
            for tag, entries in sorted(metrics.items())
            if "/" in tag and tag != TURNS
        },
        "pictures": {tag: pictures(events, tag, turns, room) for tag in events.Tags()["images"]},
        "guard": texts(events, "guard", turns),
        "episodes": episodes(run / EPISODES_FILE),
    }


def thinned(curve: Sequence[Any]) -> list[Any]:
    """At most `POINTS` of a curve's points, the last among them."""
    step = -(-len(curve) // POINTS)
    return list(curve[::-1][::step][::-1]) if step > 1 else list(curve)


def pictures(events: EventAccumulator, tag: str, turns: Mapping[int, float], room: int) -> list[Any]:
    """A tag's pictures with the turns at which they were drawn: as many as there is room for, spread over the
    run, the first and the last among them."""
    drawn = sorted(events.Images(tag), key=lambda entry: entry.wall_time)
    if not drawn:
        return []
    room = room // max(1, len(events.Tags()["images"]))
    count = min(len(drawn), max(1, room // max(len(entry.encoded_image_string) * 4 // 3 for entry in drawn)))
    chosen = [drawn[-1]] if count == 1 else [drawn[n * (len(drawn) - 1) // (count - 1)] for n in range(count)]
    images = [base64.b64encode(entry.encoded_image_string).decode() for entry in chosen]
    return [[turns_at(entry.step, turns), image] for entry, image in zip(chosen, images, strict=True)]


def texts(events: EventAccumulator, tag: str, turns: Mapping[int, float]) -> list[Any]:
    """A tag's texts with the turns at which they were written."""
    tag = f"{tag}/text_summary"  # as TensorBoard's writer names them
    if tag not in events.Tags()["tensors"]:
        return []
    entries = sorted(events.Tensors(tag), key=lambda entry: entry.wall_time)
    written = [entry.tensor_proto.string_val[0].decode("utf-8", "replace") for entry in entries]
    return [[turns_at(entry.step, turns), text] for entry, text in zip(entries, written, strict=True)]


def turns_at(step: int, turns: Mapping[int, float]) -> float:
    """Turns of the run at the end of the last rollout up to a step."""
    return max((value for at, value in turns.items() if at <= step), default=0.0)


def episodes(file: Path) -> list[dict[str, Any]]:
    """The newest episodes of a run's file. A line that is not whole, as a killed run may leave one, is passed
    over."""
    if not file.exists():
        return []
    found = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            episode = json.loads(line)
        except ValueError:
            continue
        episode["system_prompt"] = truncate_middle(episode["system_prompt"], LONGEST_TEXT)
        episode["cut_turns"] = max(0, len(episode["turns"]) - TURNS_SHOWN)
        episode["return"] = sum(turn["reward"] for turn in episode["turns"])
        episode["turns"] = episode["turns"][:TURNS_SHOWN]
        for turn in episode["turns"]:
            for name in ("observation_text", "response_text"):
                turn[name] = truncate_middle(turn[name], LONGEST_TEXT)
        found[line] = episode  # a resumed run may have written it again
    return list(found.values())[-EPISODES:]


def finite(value: Any) -> Any:
    """Data in which numbers that are not finite, which JSON does not have, are null."""
    if isinstance(value, dict):
        return {name: finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def differing_settings(runs: Sequence[Path]) -> dict[str, list[str]]:
    """The settings that are not the same in all runs, by their names on the command line."""
    each = [flattened(yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))) for run in runs]
    names = dict.fromkeys(name for settings in each for name in settings)
    values = {name: [str(settings.get(name, "")) for settings in each] for name in names}
    return {name: row for name, row in values.items() if len(set(row)) > 1}


def flattened(settings: Any, prefix: str = "") -> dict[str, Any]:
    """Nested settings by their dotted names."""
    if not isinstance(settings, dict) or not settings:
        return {prefix: settings}
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= flattened(value, f"{prefix}.{name}" if prefix else str(name))
    return flat
