"""The text that memories add to a prompt: in play, over rollouts, in evaluation, and when a run is brought
back."""

from __future__ import annotations

import multiprocessing
import os
import signal
from functools import partial

import gymnasium
import pytest

from helpers import echo, memories, tiny
from helpers.collectors import make_runner
from helpers.learners import RecordingLearner, attach
from helpers.runs import checkpoint, lgym
from helpers.scripted import CandidateScorer, text_response
from helpers.worlds import RoomsAgent
from lgym.data import RolloutDataModule
from lgym.data.prompts.memory_prompt import MemoryPrompt, summary
from lgym.data.prompts.prompt_builder import PromptBuilder
from lgym.data.rollout.collector import Collector
from lgym.envs import make_env
from lgym.envs.workers import worker_envs
from lgym.memory import EpisodicMemory, Memory, RememberedTurn, WorkingMemory


def runner(env_id, agent, *, working=None, episodic=None, env=None, builder=None, **settings):
    builder = builder or PromptBuilder(tiny.tokenizer(), agent.system_prompt, 4096)
    env = env or gymnasium.make(env_id, max_episode_steps=5)
    return make_runner(env, agent, builder, memory=MemoryPrompt(agent, working, episodic), **settings)


def collector(memory, num_envs=2, env_id="Counting-v0", agent=None, envs=None):
    """One that trains: it reads the memory and writes it."""
    agent = agent or echo.CountingAgent()
    builder = PromptBuilder(tiny.tokenizer(), agent.system_prompt, 4096)
    shared = {"working": WorkingMemory(), "episodic": memory, "builder": builder}
    runners = [runner(env_id, agent, env=env, **shared) for env in envs or [None] * num_envs]
    return Collector(runners, 100, remember=partial(memory.store, summarize=partial(summary, agent)))


def answer(player, *texts):
    """The observation text at first, and after each answer."""
    shown = [player.prompt.observation_text]
    for text in texts:
        player.step(text_response(text))
        shown.append(player.prompt.observation_text)
    return shown


def test_memories_stand_above_the_observation():
    """In the default words."""
    agent = echo.EchoAgent()
    similar = [Memory("red -> blue (+0)", 0.5, 3, 1.0), Memory("red -> red (+1)", 1.0, 0, 0.9)]
    assert agent.render_memory("red", "", ()) == "red"
    assert agent.render_memory("red", "green -> blue (+0)", similar) == (
        "Earlier episodes:\nred -> blue (+0); return +0.5\nred -> red (+1); return +1\n"
        "This episode:\ngreen -> blue (+0)\nNow:\nred"
    )
    turns = [RememberedTurn("two\nlines", "red", 0.0), RememberedTurn("blue", "green", -1.23456)]
    assert agent.summarize(turns) == "two lines -> red (+0)\nblue -> green (-1.23)"


def test_the_window_moves_with_the_episode_and_begins_anew():
    """Later-v0 shows a word and then asks: what is read in the second turn has the first."""
    player = runner("Later-v0", memories.LaterAgent(), working=WorkingMemory())
    for seed in (0, 1):
        player.reset(seed)
        word, second = player.prompt.observation_text, answer(player, "green")[1]
        assert word in echo.WORDS
        assert second == f"This episode:\n{word} -> green (+0)\nNow:\nwhich?"
        assert (
            tiny.tokenizer()
            .decode(player.prompt.token_ids)
            .endswith("which?<|im_end|>\n<|im_start|>assistant\n")
        )
        assert player.prompts.turns == [RememberedTurn(word, "green", 0.0)]


def test_a_reply_that_could_not_be_read_is_remembered_too():
    """The same observation again, and above it the answer to it and its penalty."""
    agent = type("Agent", (memories.LaterAgent,), {"penalty": -0.5})()
    player = runner("Later-v0", agent, working=WorkingMemory(), scores_candidates=False)
    player.reset(0)
    word, again, _ = answer(player, "hm", "red")
    assert again == f"This episode:\n{word} -> hm (-0.5)\nNow:\n{word}"
    assert player.prompts.turns == [RememberedTurn(word, "hm", -0.5), RememberedTurn(word, "red", 0.0)]


def test_all_of_a_rollout_recalls_the_same():
    """Its episodes are stored when it ends: no prompt of Echo's three becomes two."""
    memory = EpisodicMemory(min_similarity=1, top_k=1)
    player = collector(memory, env_id="Echo-v0", agent=echo.EchoAgent())
    first, second = (player.play(CandidateScorer(), None, episodes=60) for _ in range(2))
    assert sorted(prompt.observation_text for prompt in first.prompts) == sorted(echo.WORDS)
    assert len(second.prompts) == 3
    for prompt in second.prompts:
        _, similar, *_, word = prompt.observation_text.splitlines()
        assert prompt.observation_text.startswith("Earlier episodes:\n")
        assert similar.startswith(f"{word} -> ")


@pytest.mark.parametrize("unit", ["turn", "episode"])
def test_which_environment_played_makes_no_difference(unit):
    """Episodes, here of any lengths, are stored in the order of their numbers."""
    states = []
    for num_envs in (1, 2, 5):
        memory = EpisodicMemory(unit, capacity=12)
        envs = [gymnasium.make("Rooms-v0", text=False, max_episode_steps=9) for _ in range(num_envs)]
        player = collector(memory, agent=RoomsAgent(), envs=envs)
        for _ in range(3):
            player.play(CandidateScorer(), None, episodes=7)
        states.append(memory.state_dict())
    assert states[0] == states[1] == states[2]
    assert len(states[0]["entries"]) == 12


def test_an_episode_over_two_rollouts_is_stored_when_it_ends():
    """Episodes of five turns: none has ended after three, and then each is stored whole."""
    memory = EpisodicMemory("episode", max_characters=1000)
    player = collector(memory)
    player.play(CandidateScorer(), None, turns=6)
    assert len(memory) == 0
    player.play(CandidateScorer(), None, turns=6)
    found = memory.state_dict()["entries"]
    assert [entry["text"].count("->") for entry in found] == [5, 5]
    assert [entry["total"] / entry["count"] for entry in found] == [15.0, 15.0]  # 1 + 2 + 3 + 4 + 5
    player.play(CandidateScorer(), None, turns=6)
    assert memory.state_dict()["entries"] == found, "stored twice"


@pytest.mark.filterwarnings("ignore:.*is dropped and begun anew:UserWarning")
def test_an_episode_that_was_dropped_is_stored_once():
    """A worker is killed in its third turn; what is remembered is as if nothing had happened."""
    expected, memory = EpisodicMemory(), EpisodicMemory()
    collector(expected).play(CandidateScorer(), None, episodes=4)
    player = collector(memory, envs=worker_envs(partial(make_env, "Counting-v0", {}, 5), 2, 20.0))
    steps = iter(range(100))

    def progress(so_far):
        if next(steps) == 2:
            os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)

    rollout = player.play(CandidateScorer(), None, episodes=4, progress=progress)
    player.close()
    assert rollout.episodes_dropped == 1
    assert memory.state_dict() == expected.state_dict()


@pytest.mark.parametrize("history", [0, 2, "full"])
@pytest.mark.parametrize("unit", ["turn", "episode"])
def test_an_episode_is_brought_back_as_it_was_shown(history, unit):
    """Though the memory is another by then, prompts are the same token for token; and they recall it from
    there on."""
    memory = EpisodicMemory(unit, min_similarity=0)
    settings = {
        "working": WorkingMemory(2),
        "episodic": memory,
        "history": history,
        "scores_candidates": False,
    }
    memory.store([[RememberedTurn("1 1", "stop", 0.0)]], partial(summary, echo.CountingAgent()))
    player, other = (runner("Counting-v0", echo.CountingAgent(), **settings) for _ in range(2))
    player.reset(3)
    shown = answer(player, "go on", "?", "stop")
    assert all("1 1 -> stop" in text for text in shown)
    state = player.state_dict()
    memory.store([[RememberedTurn("1 1", "go on", 9.0)]], partial(summary, echo.CountingAgent()))
    other.load_state_dict(state)
    assert other.prompt.token_ids == player.prompt.token_ids
    assert other.state_dict() == state
    assert len("".join(text or "" for text in state["shown"])) <= (len(shown[-1]) if history == 0 else 10_000)
    assert answer(other, "go on", "stop") == answer(player, "go on", "stop")
    assert other.prompt.token_ids == player.prompt.token_ids
    assert "1 1 -> go on (+9)" in other.prompt.observation_text


def test_without_memories_nothing_is_added():
    """Neither to the prompt nor to the checkpoint."""
    agent = type("Agent", (echo.CountingAgent,), {"render_memory": None, "summarize": None})()
    player = runner("Counting-v0", agent)
    player.reset(3)
    assert all(len(text.split()) == 2 for text in answer(player, "stop", "stop"))
    assert "shown" not in player.state_dict()


BOTH = {"data__working_memory": "{turns: 2}", "data__episodic_memory": "{min_similarity: 0.2}"}


def test_evaluation_reads_what_training_remembers_and_adds_nothing(tmp_path, model_folder):
    """The memory is as it was after the last rollout, however many episodes were evaluated since; `predict`
    recalls it from the checkpoint."""
    more, fewer = tmp_path / "more", tmp_path / "fewer"
    for root, episodes in ((more, 40), (fewer, 2)):
        lgym("fit", root, model_folder, trainer__max_epochs=2, data__eval_episodes=episodes, **BOTH)
    states = [checkpoint(root)["RolloutDataModule"]["episodic_memory"] for root in (more, fewer)]
    assert states[0] == states[1]
    assert states[0]["rollouts"] == 2
    assert len(states[0]["entries"]) >= 3
    lgym("predict", more, model_folder, ckpt_path="last", data__eval_episodes=3, **BOTH)
    (transcripts,) = more.rglob("transcripts.jsonl")
    assert transcripts.read_text().count("Earlier episodes:") == 3


def test_play_and_check_recall_too(tmp_path, model_folder, capsys):
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=1, **BOTH)
    capsys.readouterr()
    settings = {"trainer__enable_progress_bar": None, "ckpt_path": "last"}
    lgym("play", tmp_path, model_folder, delay=0, **settings, **BOTH)
    assert "Earlier episodes:" in capsys.readouterr().out
    lgym("check", tmp_path, model_folder, random_episodes=20, **settings, **BOTH)
    assert "Earlier episodes:" in capsys.readouterr().out


def test_an_agent_that_words_memories_wrongly_is_told_before_a_model_is_loaded(
    tmp_path, model_folder, monkeypatch, capfd
):
    monkeypatch.setattr("lgym.modules.base.build_llm", None)
    for method in ("render_memory", "summarize"):
        with monkeypatch.context() as patch:
            patch.setattr(echo.EchoAgent, method, lambda self, *said: 3, raising=False)
            with pytest.raises(SystemExit):
                lgym("fit", tmp_path, model_folder, **BOTH)
        assert f"EchoAgent.{method} returned 3; it must return text." in capfd.readouterr().err


def test_charts_ask_as_the_first_turn_of_an_episode_does():
    """Memories of other episodes are shown, and no earlier turn."""
    agent, memory = echo.EchoAgent(), EpisodicMemory(min_similarity=1)
    data = RolloutDataModule(
        env="Echo-v0",
        agent=agent,
        episodes_per_rollout=8,
        working_memory=WorkingMemory(),
        episodic_memory=memory,
    )
    attach(data, RecordingLearner())
    memory.store([[RememberedTurn("red", "red", 1.0)]], partial(summary, agent))
    red, green = data.prompts([0, 1])
    assert red.observation_text == "Earlier episodes:\nred -> red (+1); return +1\nNow:\nred"
    assert green.observation_text == "green"
