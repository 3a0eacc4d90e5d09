"""YAML in which a key stands twice is refused: parsers take the last one without a word."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml
from jsonargparse import get_loader, set_loader

_load = get_loader("yaml")


def refuse_repeated_keys() -> None:
    """Has every YAML that the command line reads looked through first."""
    set_loader("yaml", _load_unambiguous, exceptions=(yaml.YAMLError,))


def _load_unambiguous(text: str) -> Any:
    for key, first in _repeated(yaml.compose(text, Loader=yaml.SafeLoader)):
        lines = f"lines {first.start_mark.line + 1} and {key.start_mark.line + 1}"
        raise yaml.YAMLError(f"the key {key.value!r} stands twice in one place, in {lines}. Leave one of them.")
    return _load(text)


def _repeated(node: yaml.Node | None) -> Iterator[tuple[yaml.Node, yaml.Node]]:
    """Keys that their mapping has had before, each with the first of its kind."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _repeated(item)
    elif isinstance(node, yaml.MappingNode):
        known: dict[Any, yaml.Node] = {}
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and known.setdefault(key.value, key) is not key:
                yield key, known[key.value]
            yield from _repeated(value)
