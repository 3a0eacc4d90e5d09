"""TextWorld's text adventures (Côté et al. 2018, arXiv:1806.11532) as an ordinary Gymnasium environment."""

import re
from collections.abc import Sequence
from typing import Any

import gymnasium
from gymnasium.spaces import Text
from gymnasium.utils import EzPickle

from lgym.types import ConfigError

LONGEST = 10_000  # the maximum characters of an observation; a longer one is cut off

LONGEST_COMMAND = 198  # the characters that the games' interpreter reads

# The characters that the interpreter can print, and a new line
CHARACTERS = "\n" + bytes(range(32, 256)).decode("cp1252", errors="ignore")

_QUESTION = "Which do you mean"  # the interpreter's, where one thing's name is a part of another's

_REPLY_END = re.compile(r"\n>|Would you like to RESTART")  # the interpreter's prompt and status line follow


class TextWorldEnv(gymnasium.Env[str, str], EzPickle):
    """Text adventures to win by commands such as `take key from safe`, generated from numbers or given as
    files.

    `reset(seed=s)` starts game number `s % games` of the range, whose text and commands are always the same,
    so that episodes in a row walk through all games, and equal seeds share one. An observation has a line
    each for the goal, the place, the inventory and, after a command, the game's reply:

        Goal: First of all, move east. Then, open the safe. Got that? Good!
        Place: -= Cellar =- You are in a cellar. There is a safe. There is an exit to the east.
        Inventory: You are carrying nothing.
        Reply: You close the safe.

    With `show_done` a line *Done: move east, open the safe.* follows the goal once a command was taken.

    An action is a command. One that is not among the `admissible_commands` of the info changes nothing, and
    the reply is *You can't COMMAND.*: the interpreter would understand more (and save files), but TextWorld
    would then lose track of the game. Where the interpreter asks which of two things is meant by Y in `take X
    from Y`, as it may if Y's name is a part of the other's, it is told `take X`, which does the same. Winning
    pays 1 and ends the episode, losing ends it. The info also has `won`, `lost`, `score`, `max_score`,
    `objective`, `game` (its file's name) and `policy_commands`, a shortest known way to win from here, empty
    where there is none.

    Args:
        rooms: of each game; a number, or [lowest, highest], of which each game has its own.
        objects: the least number of things and containers; a number or a range.
        quest_length: the most steps to win; a number or a range.
        quest_breadth: the things that a step may need at once: a number, or [lowest, highest], between which
            TextWorld draws. With [1, 5] game number s is the one that `tw-make custom --world-size ROOMS
            --nb-objects OBJECTS --quest-length STEPS --seed s` makes.
        games: the number of different games.
        first_game: the number of the first. Ranges that do not overlap are games kept apart, to train and to
            evaluate on.
        files: games to play instead of generated ones: .z8 (with its .json beside) or .json, folders of them,
            or patterns.
        intermediate_rewards: also reward every command that brings the win nearer by the fraction of the way
            that it goes, and charge it for one that leads away. A win then comes to 2 in all.
        show_done: also list the commands that the game has taken so far. Without them nothing tells which
            steps of the goal are done, as soon as a command is refused.
        render_mode: `ansi` to let `render` return the last observation; null for nothing.

    Raises:
        ValueError: if TextWorld is not installed, or the games cannot be.
    """

    metadata = {"render_modes": ["ansi"]}
    observation_space = Text(LONGEST, charset=CHARACTERS)
    action_space = Text(LONGEST_COMMAND, charset=CHARACTERS)

    def __init__(
        self,
        rooms: int | Sequence[int] = (2, 3),
        objects: int | Sequence[int] = 4,
        quest_length: int | Sequence[int] = (2, 3),
        quest_breadth: int | Sequence[int] = 1,
        games: int = 100,
        first_game: int = 0,
        files: str | Sequence[str] | None = None,
        intermediate_rewards: bool = False,
        render_mode: str | None = None,
        show_done: bool = False,
    ) -> None:
        EzPickle.__init__(
            self,
            rooms,
            objects,
            quest_length,
            quest_breadth,
            games,
            first_game,
            files,
            intermediate_rewards,
            render_mode,
            show_done,
        )
        try:
            import textworld  # noqa: F401

            from lgym.envs.textworld_games import given_games, made_games
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"lgym/TextWorld-v0 needs a package that this Python does not have ({error}). "
                'Install it: pip install "lgym[textworld]".'
            ) from error
        self.render_mode = render_mode
        self.intermediate_rewards = intermediate_rewards
        self.show_done = show_done
        *amounts, breadth = (
            x if isinstance(x, int) else tuple(x) for x in (rooms, objects, quest_length, quest_breadth)
        )
        self._games = (
            made_games(*amounts, games, first_game, breadth) if files is None else given_games(files)
        )
        self._play: Any = None  # TextWorld's own environment of the game
        self._state: Any = None
        self._observation = ""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start the seed's game; without a seed, any of them."""
        import textworld

        super().reset(seed=seed)
        count = len(self._games.paths)
        self._path = self._games.path(int(self.np_random.integers(count)) if seed is None else seed % count)
        self._end()
        infos = textworld.EnvInfos(
            description=True,
            inventory=True,
            objective=True,
            admissible_commands=True,
            policy_commands=True,
            score=True,
            max_score=True,
        )
        # A fresh interpreter a game: `load` on one that has played leaks its memory.
        self._play = textworld.start(str(self._path), infos)
        self._play.seed(1)  # the interpreter's own draws; 0 would be the clock
        self._state = self._play.reset()
        self._length = len(self._state.policy_commands)  # commands to win at the start
        self._left = self._length  # and now
        self._done: list[str] = []  # the commands that were taken
        self._observation = self._observe(None)
        return self._observation, self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Give a command to the game."""
        admissible = {command.casefold(): command for command in self._state.admissible_commands}
        given = " ".join(str(action).split())
        command = admissible.get(given.casefold())
        reply = f"You can't {given[:LONGEST_COMMAND]}."
        if command is not None:
            taken = self._take(command)
            reply = _REPLY_END.split(self._state.feedback)[0]
            if taken:
                self._done.append(command)
        self._observation = self._observe(reply)
        won, lost = bool(self._state.won), bool(self._state.lost)
        return self._observation, float(won) + self._progress(won), won or lost, False, self._info()

    def _take(self, command: str) -> bool:
        """Give an admissible command to the interpreter; false if it asks which thing is meant."""
        shorter = command.rpartition(" from ")[0]  # "take key": then nobody asks which safe it lies in
        for words in filter(None, (command, shorter)):
            self._state, _, _ = self._play.step(words)
            if _QUESTION not in self._state.feedback:
                return True
        return False

    def render(self) -> str | None:
        return self._observation if self.render_mode == "ansi" else None

    def close(self) -> None:
        self._end()
        self._games.close()

    def _end(self) -> None:
        if self._play is not None:
            self._play.close()
            self._play = None

    def _progress(self, won: bool) -> float:
        """The fraction of the way that the last command went; 0 where no way is known any more."""
        left = 0 if won else len(self._state.policy_commands) or self._left
        gone, self._left = self._left - left, left
        return gone / self._length if self.intermediate_rewards and self._length else 0.0

    def _observe(self, reply: str | None) -> str:
        lines = {
            "Goal": self._state.objective,
            "Done": f"{', '.join(self._done)}." if self._done and self.show_done else "",
            "Place": self._state.description,
            "Inventory": self._state.inventory,
            "Reply": reply,
        }
        text = "\n".join(f"{name}: {' '.join(part.split())}" for name, part in lines.items() if part)
        return text.encode("cp1252", errors="replace").decode("cp1252")[:LONGEST]

    def _info(self) -> dict[str, Any]:
        return {
            "admissible_commands": list(self._state.admissible_commands),
            "policy_commands": list(self._state.policy_commands),
            "won": bool(self._state.won),
            "lost": bool(self._state.lost),
            "score": int(self._state.score or 0),
            "max_score": int(self._state.max_score),
            "objective": self._state.objective,
            "game": self._path.name,
        }


def parts(observation: str) -> dict[str, str]:
    """An observation's lines by their names: Goal, Place, Inventory and, but for the first one, Reply."""
    return dict(line.split(": ", 1) for line in observation.splitlines() if ": " in line)


gymnasium.register("lgym/TextWorld-v0", "lgym.envs.textworld:TextWorldEnv", max_episode_steps=50)
