"""TextWorld's words: short, complete enough to win by, and read back as the commands that they name."""

from __future__ import annotations

import pytest

from lgym.agents import GeneralAgent, TextWorldAgent
from lgym.agents.textworld import steps
from lgym.envs.textworld import TextWorldEnv

OBSERVATION = (
    "Goal: Welcome to TextWorld! Here is your task for today. First stop, make an effort to venture south. "
    "After that, open "
    "the TextWorld safe. Got that? Good!\n"
    "Place: -= Spare Room =- You are in a spare room. There is a safe. There is an exit to the south.\n"
    "Inventory: You are carrying: a type X key and a sock.\n"
    "Reply: You pick up the sock from the ground."
)
INFO = {"admissible_commands": ["take key", "go south", "look", "inventory", "examine sock", "drop sock"]}


@pytest.mark.parametrize(
    ("goal", "expected"),
    [
        (
            "You are now playing a profound round of TextWorld! First of all, you could, like, retrieve the "
            "cloak from the "
            "formless safe. And then, ditch the cloak on the floor of the cellar. And once you've done "
            "that, you win!",
            "retrieve the cloak from the formless safe, then ditch the cloak on the floor of the cellar",
        ),
        (
            "Hey, thanks for coming over to the TextWorld today, there is something I need you to do for "
            "me. First off, if "
            "it's not too much trouble, I need you to make an attempt to head east. After taking the "
            "latchkey, you can put "
            "the sock inside the box. Okay, and then, make it so the safe is locked. Alright, thanks!",
            "head east, then put the sock inside the box, then make it so the safe is locked",
        ),
        (
            "Who's got a virtual machine and is about to play through an exciting round of TextWorld? You "
            "do! Here is how "
            "to play! First, it would be great if you could try to go east. With the key, unlock the "
            "TextWorld chest with "
            "the key. If you can get your hands on the sock, eat it. That's it!",
            "go east, then unlock the TextWorld chest with the key, then eat it",
        ),
        (
            "Hey, thanks for coming over to TextWorld! Please eat the licorice strip.",
            "eat the licorice strip",
        ),
        ("Welcome to TextWorld! Your objective is to open the safe.", "open the safe"),
        ("Find the treasure", "Find the treasure"),
    ],
)
def test_a_goal_is_its_instructions(goal, expected):
    assert steps(goal) == expected


def test_an_observation_is_goal_room_and_inventory():
    assert TextWorldAgent().format_observation(OBSERVATION) == (
        "Goal: venture south, then open the TextWorld safe.\n"
        "You are in the spare room.\n"
        "You are carrying a type X key and a sock."
    )
    described = TextWorldAgent(describe=True).format_observation(OBSERVATION).split("\n")
    assert described[1] == "You are in a spare room. There is a safe. There is an exit to the south."


@pytest.mark.parametrize(
    ("reply", "shown"),
    [
        ("You open the safe, revealing a key.", ["You open the safe, revealing a key."]),
        ("-= Garage =- You are in a garage.", []),
    ],
)
def test_the_reply_to_a_command_is_shown_unless_it_is_a_room(reply, shown):
    observation = f"{OBSERVATION}\nReply: {reply}"
    before = TextWorldAgent().format_observation(observation).split("\n")
    assert TextWorldAgent(replies=True).format_observation(observation).split("\n") == before + shown


def test_what_is_done_follows_the_goal():
    goal, *rest = OBSERVATION.splitlines()
    shown = TextWorldAgent().format_observation("\n".join([goal, "Done: go south, take key.", *rest]))
    without = TextWorldAgent().format_observation(OBSERVATION).split("\n")
    assert shown.split("\n") == [without[0], "Done: go south, take key.", *without[1:]]


def test_candidates_are_sorted_and_without_those_that_only_look():
    assert TextWorldAgent().candidates(OBSERVATION, INFO) == ["drop sock", "go south", "take key"]
    every = TextWorldAgent(idle_commands=True).candidates(OBSERVATION, INFO)
    assert every == ["drop sock", "examine sock", "go south", "inventory", "look", "take key"]


@pytest.mark.parametrize("free_text", [False, True])
def test_candidates_are_read_as_their_commands(free_text):
    agent = TextWorldAgent(free_text=free_text)
    read = [agent.parse(candidate).action for candidate in agent.candidates(OBSERVATION, INFO)]
    assert read == ["drop sock", "go south", "take key"]


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("command: go east", "go east"),
        (
            "I should leave.\nCommand: go east.\nThat is all I can do in this room, which is quite empty.",
            "go east",
        ),
        ("command: look\nNo, wait.\ncommand:  take key from safe ", "take key from safe"),
        ("> open safe", "open safe"),
        ('{"action": "open safe"}', "open safe"),
        ("", None),
        ("command:", None),
        ("I look around.\nI see nothing.", None),
        ("I would like to think about this for a while before I say what I do", None),
    ],
)
def test_free_text_names_a_command(text, action):
    parsed = TextWorldAgent(free_text=True).parse(text)
    assert parsed.ok == (action is not None)
    assert parsed.action == action


def test_the_prompt_says_how_to_answer():
    assert "command: go east" in TextWorldAgent(free_text=True).system_prompt
    assert "command: go east" not in TextWorldAgent().system_prompt


def test_the_candidates_are_enough_to_win(monkeypatch, tmp_path):
    """TextWorld's own way to win, taken through what the agent offers, on games of the shape of
    configs/textworld.yaml."""
    pytest.importorskip("textworld")
    from lgym.envs import make_env

    monkeypatch.setenv("LGYM_CACHE", str(tmp_path))
    games = {"rooms": [2, 3], "objects": 4, "quest_length": [2, 3], "games": 3, "first_game": 1_000_000}
    env, agent = make_env("lgym/TextWorld-v0", games, max_episode_steps=16), TextWorldAgent()
    for seed in range(3):
        observation, info = env.reset(seed=seed)
        over = False
        while not over:
            candidates = agent.candidates(observation, info)
            assert candidates == sorted(set(candidates))
            chosen = candidates[candidates.index(info["policy_commands"][0])]
            observation, _, terminated, truncated, info = env.step(agent.parse(chosen).action)
            over = terminated or truncated
        assert info["won"]
    env.close()


def test_the_general_agent_has_its_texts():
    """So `--data.env lgym/TextWorld-v0` alone learns: the same prompts, and the same candidates."""
    env = TextWorldEnv.__new__(TextWorldEnv)  # without games, which take a while
    general, own = GeneralAgent(), TextWorldAgent()
    general.bind(env)
    assert general.system_prompt == own.system_prompt
    assert general.format_observation(OBSERVATION) == own.format_observation(OBSERVATION)
    assert general.candidates(OBSERVATION, INFO) == own.candidates(OBSERVATION, INFO)
