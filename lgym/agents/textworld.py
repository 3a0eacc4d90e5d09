"""An agent for TextWorld."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from lgym.agents.base import TextAgent
from lgym.envs.textworld import parts
from lgym.types import ParsedAction

IDLE = ("look", "inventory", "examine ")  # the beginnings of commands that only tell what is shown anyway

MAX_WORDS = 12  # the words of a free text that is still taken for a command

_SENTENCES = re.compile(r"(?<=[.!?])\s+")
_GREETINGS = ("Hey, thanks", "Here is your task")
_OPENING = re.compile(
    r"((First off, if it's not too much trouble, I need you to|First of all, you could, like,"
    r"|First, it would be [\w ]+ if you could|First thing I need you to do is to|Your [\w ]*objective is to"
    r"|Please|Okay, and then,|(First|Then|Next|Following|If|Once|That|With|And|After|Having)\b[^,]*,) )?"
    r"((try|attempt|make an attempt|make an effort) to |you can )?",
    re.IGNORECASE,
)
_ROOM = re.compile(r"-= (.+?) =- ?")


class TextWorldAgent(TextAgent):
    """`lgym/TextWorld-v0`: the steps of the goal without TextWorld's courtesies, the room and the inventory.

    *Welcome to TextWorld! First of all, venture south. Then, open the safe. Got that? Good!* reads *Goal:
    venture south, then open the safe.* The goals of generated games name their steps in order, so that no
    more is needed to win; for games whose goals do not, `describe` shows the whole room.

    Args:
        describe: show the room's description, some 60 tokens, rather than its name.
        idle_commands: also offer the commands that only look: look, inventory, examine.
        free_text: for text-generating policies: the prompt asks for `command: ...`, and candidates have that
            form.
        replies: show the game's reply to the last command, but for a new room's description. Without a list
            of commands it tells which steps are done; `data.history` shows the commands before.
    """

    pattern = r"(?i)command:[ \t]*(?P<action>[^\n]+)"
    penalty = -0.1

    def __init__(
        self,
        describe: bool = False,
        idle_commands: bool = False,
        free_text: bool = False,
        replies: bool = False,
    ) -> None:
        self.describe = describe
        self.idle_commands = idle_commands
        self.free_text = free_text
        self.replies = replies

    @property
    def system_prompt(self) -> str:
        example = ", such as command: go east" if self.free_text else "."
        return (
            "You play a text adventure. Do the steps of the goal in their order. "
            f"Answer with one command{example}"
        )

    def format_observation(self, observation: str) -> str:
        lines = parts(observation)
        place = lines.get("Place", "")
        name = _ROOM.search(place)
        reply = lines.get("Reply", "") if self.replies else ""
        room = f"You are in the {name[1].lower()}." if name else ""
        done = lines.get("Done", "")
        shown = (
            f"Goal: {steps(lines.get('Goal', ''))}.",
            f"Done: {done}" if done else "",
            _ROOM.sub("", place, count=1) if self.describe else room,
            lines.get("Inventory", "").replace("carrying:", "carrying"),
            "" if _ROOM.match(reply) else reply,
        )
        return "\n".join(filter(None, shown))

    def candidates(self, observation: str, info: Mapping[str, Any]) -> Sequence[str]:
        prefix = "command: " if self.free_text else ""
        return [
            prefix + command
            for command in sorted(info["admissible_commands"])
            if self.idle_commands or not command.startswith(IDLE)
        ]

    def extract_action(self, text: str) -> ParsedAction:
        """Take a line of few words as a command; the game itself says whether it knows it."""
        command = text.strip().lstrip("> ").rstrip(".")
        if not command or command.endswith(":") or "\n" in command or len(command.split()) > MAX_WORDS:
            return ParsedAction.failure(f"{text[:100]!r} is not a line of 1 to {MAX_WORDS} words")
        return ParsedAction(command)


def steps(goal: str) -> str:
    """A goal's instructions, joined by *then*, without greeting, farewell and lead-ins.

    In TextWorld's own grammar only instructions end in a full stop, but for two greetings. A text without any
    is left as it is.
    """
    sentences = [s for s in _SENTENCES.split(goal) if s.endswith(".") and not s.startswith(_GREETINGS)]
    instructions = [_OPENING.sub("", sentence, count=1).rstrip(".") for sentence in sentences]
    return ", then ".join(text[:1].lower() + text[1:] for text in instructions) or goal.rstrip(".")
