"""`lgym report`: runs as one HTML file that needs nothing else, to look at and to show.

    lgym report runs/blackjack/version_0 runs/blackjack/version_1 --out blackjack.html

Results beside known policies, learning curves over turns (drag to zoom, double-click for the whole), the
pictures that the run drew, episodes to step through, settings that differ. `fit` writes one at its end.
"""

import argparse
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from lgym.cli.report.contents import differing_settings, finite, run_contents
from lgym.terminal import say

REPORT = "report.html"
LARGEST = 5_000_000
"""Bytes of a file that is still quickly sent and opened."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        "lgym report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folders of runs of `lgym fit`")
    parser.add_argument("--out", type=Path, help=f"the file to write; by default {REPORT} in the first run")
    return parser


def write_report(runs: Sequence[Path], out: Path) -> None:
    """Writes the report of runs.

    Args:
        runs: their folders.
        out: the HTML file.

    Raises:
        ConfigError: if a folder is none of a run.
    """
    room = LARGEST // 2 // len(runs)  # half of it for pictures, the rest for text and curves
    contents = [run_contents(run, room) for run in runs]
    text = page({"runs": contents, "settings": differing_settings(runs)})
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")


def page(contents: dict[str, Any]) -> str:
    """The HTML. Texts of environments are data in it, which the page's program puts in as text alone."""
    parts = {name: files(__package__).joinpath(name).read_text(encoding="utf-8") for name in PARTS}
    data = json.dumps(finite(contents), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    html = parts["report.html"]
    for mark, part in (("/*CSS*/", parts["report.css"]), ("/*JS*/", parts["charts.js"] + parts["report.js"])):
        html = html.replace(mark, part)
    return html.replace("/*DATA*/", data)


PARTS = ("report.html", "report.css", "charts.js", "report.js")


def main(words: Sequence[str]) -> None:
    """Writes the report that is asked for."""
    arguments = parser().parse_args(words)
    out = arguments.out or arguments.runs[0] / REPORT
    write_report(arguments.runs, out)
    say(f"{out} ({out.stat().st_size / 1e6:.1f} MB)")
