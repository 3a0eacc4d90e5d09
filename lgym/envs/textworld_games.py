"""TextWorld's games (Côté et al. 2018, arXiv:1806.11532): generated from a number, compiled once, cached.

TextWorld makes the same game from the same settings and seed on every machine, whatever Python's hash seed
is. So a game's file is named after these and the version of TextWorld, and processes that compile the same
one at once do no harm.

Needs TextWorld, which `lgym.envs.textworld` does not before it makes an environment.
"""

import hashlib
import multiprocessing
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from glob import glob
from pathlib import Path
from typing import Any

from textworld import Game, GameOptions, __version__, generator
from tqdm import tqdm

from lgym.cache import cache_folder
from lgym.types import ConfigError

Amount = int | Sequence[int]  # a number, or the lowest and the highest of which each game has its own


class Games:
    """Games that are compiled when they are first played, with a progress bar.

    Args:
        games: the path of each compiled game, with a function that makes the game to compile.
    """

    def __init__(self, games: Mapping[Path, Callable[[], Game]]) -> None:
        self.paths = list(games)
        self._games = games
        self._bar: Any = None

    def path(self, index: int) -> Path:
        """The compiled game. Raises `ValueError` where TextWorld can make none of these settings."""
        path = self.paths[index]
        if not path.exists():
            if self._bar is None:
                self._bar = tqdm(
                    desc="TextWorld games compiled",
                    total=len(self.paths),
                    initial=sum(path.exists() for path in self.paths),
                    unit="game",
                    delay=2,
                    leave=False,
                    disable=multiprocessing.parent_process()
                    is not None,  # workers would write over each other
                )
            try:
                _compile(self._games[path](), path)
            except BaseException:
                self.close()  # else it stays among the bars of the process
                raise
            self._bar.update()
            if all(path.exists() for path in self.paths):
                self.close()
        return path

    def close(self) -> None:
        """Close the progress bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def given_games(files: str | Sequence[str]) -> Games:
    """Games that are files: compiled ones (.z8 with their .json beside), or .json alone, compiled when first
    played.

    Args:
        files: paths, folders or patterns such as `games/*.z8`.

    Raises:
        ValueError: where there is no such file, or one is of another kind.
    """
    names = [files] if isinstance(files, str) else files
    paths = [path for name in names for path in _files(name)]
    return Games({_compiled(path): partial(Game.load, str(path)) for path in paths})


@cache
def made_games(
    rooms: Amount,
    objects: Amount,
    quest_length: Amount,
    games: int,
    first_game: int,
    quest_breadth: Amount = 1,
) -> Games:
    """Games number `first_game` to `first_game + games - 1`.

    The same games are the same object, so that they share a progress bar. Where an amount is a range, a
    game's own is drawn by its number; that of `quest_breadth` by TextWorld itself.
    """
    breadth = _range("quest_breadth", quest_breadth, 1)
    ranges = (
        _range("rooms", rooms, 1),
        _range("objects", objects, 0),
        _range("quest_length", quest_length, 1),
    )
    if games < 1 or first_game < 0:
        raise ConfigError(
            f"games is {games} and first_game {first_game}; give 1 or more games, from number 0 or later."
        )
    recipes = {}
    for seed in range(first_game, first_game + games):
        rng = random.Random(seed)
        n_rooms, n_objects, steps = (rng.randint(low, high) for low, high in ranges)
        wide = "" if max(breadth) == 1 else f"-breadth{breadth[0]}to{breadth[1]}"
        path = _folder() / f"rooms{n_rooms}-objects{n_objects}-quest{steps}{wide}-seed{seed}.z8"
        recipes[path] = partial(_generate, n_rooms, n_objects, steps, seed, breadth)
    return Games(recipes)


def _range(name: str, amount: Amount, least: int) -> Sequence[int]:
    bounds = (amount, amount) if isinstance(amount, int) else amount
    if len(bounds) != 2 or not least <= bounds[0] <= bounds[1]:
        raise ConfigError(f"{name} is {amount}; give a number, {least} or more, or [lowest, highest].")
    return bounds


def _folder() -> Path:
    return cache_folder() / "textworld" / __version__


def _files(name: str) -> list[Path]:
    path = Path(name).expanduser()
    in_folder = [*path.glob("*.z8"), *path.glob("*.json")]
    files = sorted(in_folder if path.is_dir() else map(Path, glob(str(path))))  # the same on every disk
    if not files:
        raise ConfigError(
            f"files: there is no game at {name!r}; give .z8 or .json files, a folder of them, or a pattern."
        )
    return files


def _compiled(path: Path) -> Path:
    """The compiled game of a file: itself, the one beside it, or that of its content in the cache."""
    if path.suffix not in (".z8", ".json"):
        raise ConfigError(
            f"files: {str(path)!r} is no game that TextWorld still plays: give .z8 or .json. A .ulx game is "
            "compiled anew from the .json that `tw-make` wrote beside it."
        )
    content = path.with_suffix(".json")
    if not content.is_file():
        raise ConfigError(f"files: {str(path)!r} has no {content.name} beside it, which says its commands.")
    if path.with_suffix(".z8").is_file():
        return path.with_suffix(".z8")
    return _folder() / f"{path.stem}-{hashlib.sha256(content.read_bytes()).hexdigest()[:16]}.z8"


def _generate(rooms: int, objects: int, quest_length: int, seed: int, quest_breadth: Sequence[int]) -> Game:
    options = GameOptions()
    options.nb_rooms = rooms
    options.nb_objects = objects
    options.quest_length = quest_length
    options.chaining.min_breadth, options.chaining.max_breadth = quest_breadth
    options.seeds = seed
    try:
        return generator.make_game(options)
    except (
        generator.QuestGenerationError,
        generator.vtypes.NotEnoughNounsError,
        generator.world.NoFreeExitError,
        AttributeError,  # how TextWorld 1.7 fails to say that it has no names left
    ) as error:
        raise ConfigError(
            f"TextWorld cannot make a game of {rooms} rooms, {objects} objects and a quest of {quest_length} "
            f"steps from seed {seed}: {error}. Give other numbers."
        ) from error


def _compile(game: Game, target: Path) -> None:
    """Compile beside the target, then rename, the .z8 last: where it is, the game is whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        options = GameOptions()
        options.path = str(Path(scratch) / target.name)
        generator.compile_game(game, options)
        for suffix in (".json", ".z8"):
            (Path(scratch) / target.name).with_suffix(suffix).replace(target.with_suffix(suffix))
