"""The report: a run as one HTML file."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from helpers.browser import browser, needs_browser
from helpers.runs import QUICK, lgym
from lgym.cli import main
from lgym.cli.report import page
from lgym.cli.report.contents import differing_settings, episodes, finite, flattened, run_contents, thinned
from lgym.types import ConfigError

HOSTILE = "<script>document.title='taken'</script><img src=x onerror=document.title='taken'>\x1b[31m</pre>"


@pytest.fixture(scope="module")
def runs(tmp_path_factory, model_folder) -> list[Path]:
    """Two runs with episodes."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        options = {"trainer__max_epochs": 7, "data__log_episodes_per_rollout": 2, "seed_everything": seed}
        lgym("fit", folder, model_folder, **options, **QUICK)
    return [folder / "version_0", folder / "version_1"]


def data_of(html: str) -> dict:
    """What the page's program reads."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html).group(1))


def test_fit_leaves_a_report(runs):
    """It is whole by itself: no address of another machine, and far below five megabytes."""
    html = (runs[0] / "report.html").read_text()
    (run,) = data_of(html)["runs"]
    assert run["about"]["env"] == "Echo-v0"
    assert run["about"]["finished"] is True
    assert [turns for turns, _ in run["curves"]["rollout/return_mean"]] == [32 * n for n in range(1, 8)]
    assert not re.search(r'(src|href)\s*=\s*"?http', html)
    assert len(html) < 1_000_000


def test_runs_are_overlaid_and_what_differs_is_told(runs, tmp_path, capsys):
    main(["report", *map(str, runs), "--out", str(tmp_path / "both.html")])
    data = data_of((tmp_path / "both.html").read_text())
    assert [run["name"].rpartition("/")[2] for run in data["runs"]] == ["version_0", "version_1"]
    assert data["settings"] == {"seed_everything": ["0", "1"]}
    assert "both.html" in capsys.readouterr().out


def test_episodes_of_the_first_and_the_last_rollout_are_kept(runs):
    found = episodes(runs[0] / "episodes.jsonl")
    assert [episode["rollout"] for episode in found] == [1, 1, 6, 6, 7, 7]
    turn = found[0]["turns"][0]
    assert turn["observation_text"] in ("red", "green", "blue")
    assert sum(turn["probabilities"].values()) == pytest.approx(1.0, abs=1e-3)
    assert found[0]["return"] == turn["reward"]


def test_a_line_that_is_not_whole_and_one_written_twice_are_passed_over(runs, tmp_path):
    lines = (runs[0] / "episodes.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "episodes.jsonl").write_text("".join([*lines, *lines[-2:], lines[0][:40]]))
    assert episodes(tmp_path / "episodes.jsonl") == episodes(runs[0] / "episodes.jsonl")
    assert episodes(tmp_path / "none.jsonl") == []


def test_the_episodes_of_a_group_are_all_kept(tmp_path):
    """They have one seed."""
    turn = {"observation_text": "red", "response_text": "blue"}
    lines = [
        json.dumps(
            {"rollout": 1, "seed": 5, "system_prompt": "Say it.", "turns": [{**turn, "reward": reward}]}
        )
        for reward in (0.0, 1.0)
    ]
    (tmp_path / "episodes.jsonl").write_text("\n".join(lines))
    assert [episode["return"] for episode in episodes(tmp_path / "episodes.jsonl")] == [0.0, 1.0]


def test_long_episodes_and_texts_are_cut(runs, tmp_path):
    episode = json.loads((runs[0] / "episodes.jsonl").read_text().splitlines()[0])
    episode["turns"] = [{**episode["turns"][0], "observation_text": "x" * 1_000_000}] * 300
    (tmp_path / "episodes.jsonl").write_text(json.dumps(episode) + "\n")
    (found,) = episodes(tmp_path / "episodes.jsonl")
    assert (len(found["turns"]), found["cut_turns"]) == (200, 100)
    assert len(found["turns"][0]["observation_text"]) < 5000


def test_long_curves_keep_their_end():
    assert thinned([(n, n) for n in range(2500)])[-1] == (2499, 2499)
    assert len(thinned([(n, n) for n in range(2500)])) == 834
    assert thinned([(1, 2)]) == [(1, 2)]


def test_numbers_that_are_not_finite_are_null():
    """JSON has none: a browser would refuse the whole page."""
    assert finite({"a": [1.0, float("nan")], "b": (float("inf"), "x")}) == {
        "a": [1.0, None],
        "b": [None, "x"],
    }
    assert '"a":null' in page({"a": float("nan")})


def test_settings_are_compared_by_their_names(tmp_path):
    assert flattened({"a": {"b": 1, "c": {}}, "d": [2]}) == {"a.b": 1, "a.c": {}, "d": [2]}
    for name, text in (("one", "a: {b: 1}\nc: 2\n"), ("two", "a: {b: 3}\nc: 2\nd: 4\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(text)
    assert differing_settings([tmp_path / "one", tmp_path / "two"]) == {"a.b": ["1", "3"], "d": ["", "4"]}


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"has no run\.json"):
        run_contents(tmp_path, 1000)


def test_a_text_cannot_end_the_data():
    html = page({"text": HOSTILE})
    assert HOSTILE not in html
    assert data_of(html) == {"text": HOSTILE}


@needs_browser
def test_a_browser_shows_it(runs, tmp_path):
    """Without an error; texts of an environment are text, whatever is in them."""
    run = tmp_path / "runs" / "version_0"
    shutil.copytree(runs[0], run)
    lines = [json.loads(line) for line in (run / "episodes.jsonl").read_text().splitlines()]
    for episode in lines:
        episode["turns"][0]["observation_text"] = HOSTILE
        episode["system_prompt"] = HOSTILE
    (run / "episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    main(["report", str(run), "--out", str(tmp_path / "report.html")])
    with browser(tmp_path / "profile") as driver:
        driver.get(f"file://{tmp_path / 'report.html'}")
        assert driver.title == "Echo-v0: lgym report"
        assert len(driver.find_elements("css selector", "svg")) >= 5
        assert not driver.find_elements("css selector", "img[src=x]")
        shown = driver.execute_script("return document.body.textContent")
        assert HOSTILE.replace("\x1b[31m</pre>", "") in shown
        assert "Mean return" in shown
