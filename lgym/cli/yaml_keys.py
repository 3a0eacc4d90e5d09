"""Reading of YAML; duplicate keys are refused, of which parsers take the last one without a word."""

from pathlib import Path
from typing import Any

import yaml
from jsonargparse import get_loader, set_loader

_load = get_loader("yaml")


class _UniqueKeyLoader(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        mapping = super().compose_mapping_node(anchor)
        first: dict[Any, yaml.Node] = {}
        for key, _ in mapping.value:
            if isinstance(key, yaml.ScalarNode) and first.setdefault(key.value, key) is not key:
                raise yaml.YAMLError(
                    f"the key {key.value!r} stands twice in one place, in lines "
                    f"{first[key.value].start_mark.line + 1} and {key.start_mark.line + 1}. Leave one of "
                    "them."
                )
        return mapping


def refuse_duplicate_keys() -> None:
    """Makes every YAML that the command line reads an error if a mapping in it has a key twice."""
    set_loader("yaml", _load_unique, exceptions=(yaml.YAMLError,))


def yaml_of(path: Path) -> dict[str, Any]:
    """The settings in a YAML; none where it is no such file, of which the parser will speak."""
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return {}
    return settings if isinstance(settings, dict) else {}


def _load_unique(text: str) -> Any:
    if text == "None":  # what jsonargparse makes of `--model.loss.target_kl null` on its way to the option
        return None
    yaml.compose(text, Loader=_UniqueKeyLoader)
    return _load(text)
