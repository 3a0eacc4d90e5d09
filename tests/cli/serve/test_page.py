"""The page of `lgym serve` in a real browser, by keyboard."""

from __future__ import annotations

import gymnasium
import pytest

from cli.serve.test_serve import Running, options
from helpers.browser import browser, needs_browser, wait_until
from helpers.echo import WORDS, EchoEnv, ForgivingEchoAgent
from helpers.runs import QUICK, lgym

pytest.importorskip("uvicorn")
pytestmark = needs_browser

HOSTILE = "<script>document.title='taken'</script><img src=x onerror=document.title='taken'>\x1b[31m"


class HostileEnv(EchoEnv):
    """Echo that draws a megabyte, which would like to run code in the page."""

    metadata = {"render_modes": ["ansi"]}

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode

    def render(self) -> str:
        return HOSTILE + "." * 1_000_000


class HostileAgent(ForgivingEchoAgent):
    """And what is observed would like to, too."""

    def format_observation(self, observation) -> str:
        return HOSTILE + super().format_observation(observation)


if "Hostile-v0" not in gymnasium.registry:
    gymnasium.register("Hostile-v0", HostileEnv)


def text_of(driver, name: str) -> str:
    return driver.find_element("id", name).text


def press(driver, keys: str, score: str) -> None:
    """Press keys, and wait for the score that they lead to."""
    driver.find_element("tag name", "body").send_keys(keys)
    wait_until(driver, lambda d: score in text_of(d, "score"))


@pytest.fixture(scope="module")
def served(tmp_path_factory, model_folder):
    folder = tmp_path_factory.mktemp("page")
    three_turns = {"data__env_kwargs__turns": 3}
    lgym("fit", folder, model_folder, trainer__max_epochs=5, **QUICK, **three_turns)
    run = folder / "version_0"
    running = Running(
        ["--config", str(run / "config.yaml"), "--model.init_args.llm.adapter", str(run / "adapter")]
    )
    yield running
    running.stop()


def test_whole_episodes_by_keyboard(served, tmp_path):
    """A person's answers, the agent's, and both in turns; nothing is clicked."""
    with browser(tmp_path) as driver:
        driver.get(served.url)
        wait_until(driver, lambda d: d.title == "Echo-v0: lgym")
        wait_until(driver, lambda d: "turn 0, return 0" in text_of(d, "score"))
        assert len(driver.find_elements("class name", "track")) == 3
        right = 0
        for turn in (1, 2, 3):
            shown = WORDS.index(text_of(driver, "observation"))
            press(driver, str(shown + 1), f"turn {turn}, return {(right := right + 1)}")
        assert "terminated" in text_of(driver, "score")
        press(driver, "1", "turn 3")  # nothing more happens
        assert text_of(driver, "log").count("you: ") == 3

        press(driver, "n", "turn 0, return 0")
        assert driver.find_element("id", "seed").get_attribute("value") == "1"
        shown = WORDS.index(text_of(driver, "observation"))
        press(driver, str((shown + 1) % 3 + 1), "turn 1, return 0")
        press(driver, " ", "turn 2")
        press(driver, "p", "turn 3")
        assert "terminated" in text_of(driver, "score")
        assert text_of(driver, "log").count("you: ") == 1
        assert len(driver.find_elements("css selector", "#values svg")) == 1


def test_what_an_environment_says_is_text(tmp_path, model_folder):
    changes = {"data.env": "Hostile-v0", "data.agent": "cli.serve.test_page.HostileAgent"}
    running = Running(options(tmp_path, model_folder, **changes))
    try:
        with browser(tmp_path / "profile") as driver:
            driver.get(running.url)
            wait_until(driver, lambda d: "<script>" in text_of(d, "observation"))
            shown = [
                driver.execute_script("return document.getElementById(arguments[0]).textContent", name)
                for name in ("observation", "picture")
            ]
            assert shown[0].startswith(HOSTILE)
            assert shown[1] == HOSTILE.replace("\x1b", "\\x1b") + "." * 1_000_000
            assert driver.title == "Hostile-v0: lgym"
            assert not driver.find_elements("css selector", "main script, img[src=x]")
            press(driver, "1", "turn 1")
    finally:
        running.stop()
