"""`lgym push`: a trained agent to the Hugging Face Hub, with its card.

    lgym push me/blackjack-smollm2 runs/blackjack/version_0

It uploads the run's peft adapter, its YAML and `run.json`, or with `--formats` what `lgym export` writes. The
token is that of `hf auth login` or HF_TOKEN.
"""

import argparse
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError

from lgym.callbacks.model_card import ABSOLUTE_PATH
from lgym.cli import export
from lgym.models.export import GGUF_TYPES
from lgym.terminal import say
from lgym.types import ConfigError

RUN_FILES = ("config.yaml", "run.json")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        "lgym push", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("repo", metavar="REPO", help="the repository's id, such as me/blackjack")
    parser.add_argument("run", type=Path, metavar="RUN", help=export.RUN_HELP)
    parser.add_argument(
        "--formats", nargs="+", choices=list(export.FORMATS), default=[], help="see `lgym export`"
    )
    parser.add_argument("--type", choices=list(GGUF_TYPES), default="q8_0", help="of a GGUF's matrices: q8_0")
    parser.add_argument("--base", help="the model that was trained, if it lies elsewhere now")
    parser.add_argument(
        "--out",
        type=Path,
        help="the folder to write into; by default RUN/push, or runs/push/AGENT, which is emptied before",
    )
    parser.add_argument("--private", action="store_true", help="make a new repository a private one")
    parser.add_argument("--dry-run", action="store_true", help="write the folder and upload nothing")
    return parser


def gather(exported: export.Export, formats: Sequence[str]) -> None:
    """Writes what is uploaded into the export's folder."""
    folder = exported.out
    if not formats:  # copies have the time of now
        shutil.copytree(exported.adapter, folder, dirs_exist_ok=True, copy_function=shutil.copy)
    folder.mkdir(parents=True, exist_ok=True)
    for name in dict.fromkeys(formats):
        export.FORMATS[name](exported)
    if formats:
        exported.write_card(formats)
    exported.add_picture()
    for name in RUN_FILES:
        if (exported.folder / name).exists():
            settings = without_folders(yaml.safe_load((exported.folder / name).read_text(encoding="utf-8")))
            text = yaml.safe_dump(settings) if name.endswith(".yaml") else json.dumps(settings, indent=1)
            (folder / name).write_text(text, encoding="utf-8")


def written(folder: Path) -> dict[str, int]:
    """The files in a folder, by their names in it, with the times at which they were written."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_mtime_ns for path in files}


def without_folders(value: Any) -> Any:
    """Settings in which paths have lost the folders of this machine, which are nobody's business."""
    if isinstance(value, dict):
        return {name: without_folders(part) for name, part in value.items()}
    if isinstance(value, list):
        return [without_folders(part) for part in value]
    if isinstance(value, str) and value.startswith("lgym "):
        return ABSOLUTE_PATH.sub("", value)
    return Path(value).name if isinstance(value, str) and value.startswith(("/", "~/")) else value


def main(words: Sequence[str]) -> None:
    """Writes the folder and uploads it.

    Raises:
        ConfigError: if the Hub does not take it.
    """
    arguments = parser().parse_args(words)
    exported = export.find(arguments.run, arguments.base, arguments.type, arguments.out, "push")
    folder = exported.out
    if arguments.out is None:
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier push
    earlier = written(folder)
    gather(exported, arguments.formats)
    names = sorted(name for name, time in written(folder).items() if time != earlier.get(name))
    say(f"{folder}: {', '.join(names)}")
    if arguments.dry_run:
        say("Nothing was uploaded (--dry-run).")
        return
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
    try:
        api.create_repo(arguments.repo, private=arguments.private or None, exist_ok=True)
        said = api.upload_folder(
            repo_id=arguments.repo,
            folder_path=folder,
            allow_patterns=names,
            commit_message="An agent trained with lgym",
        )
    except (HfHubHTTPError, HFValidationError, LocalTokenNotFoundError, OSError) as error:
        raise ConfigError(
            f"The Hub did not take {arguments.repo}: {str(error).strip().splitlines()[0]} Log in by `hf auth "
            f"login`, or set HF_TOKEN; the folder {folder} is whole."
        ) from error
    say(f"Uploaded: {said}")
