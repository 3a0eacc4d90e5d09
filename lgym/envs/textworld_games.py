"""TextWorld's games (Côté et al. 2018, arXiv:1806.11532): generated from a number, compiled once, cached.

TextWorld makes the same game from the same settings and seed on every machine, whatever Python's hash seed
is. So a game's file is named after these and the version of TextWorld, and processes that compile the same
one at once do no harm.
"""

import hashlib
import multiprocessing
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from glob import glob
from pathlib import Path
from typing import Any

from tqdm import tqdm

from lgym.cache import cache_folder
from lgym.types import ConfigError

Amount = int | Sequence[int]  # A number, or the lowest and the highest of which each game has its own


@dataclass(frozen=True)
class Recipe:
    """The settings and the seed of one game."""

    rooms: int
    objects: int
    quest_length: int
    seed: int

    @property
    def path(self) -> Path:
        """The path of the compiled game."""
        return (
            _folder() / f"rooms{self.rooms}-objects{self.objects}-quest{self.quest_length}-seed{self.seed}.z8"
        )


class MadeGames:
    """A range of games that are generated and compiled when they are first played, with a progress bar."""

    def __init__(self, recipes: Sequence[Recipe]) -> None:
        self._recipes = recipes
        self._bar: Any = None

    def __len__(self) -> int:
        return len(self._recipes)

    def path(self, index: int) -> Path:
        """The compiled game. Raises `ValueError` where TextWorld can make none of these settings."""
        recipe = self._recipes[index]
        if not recipe.path.exists():
            if self._bar is None:
                self._bar = tqdm(
                    desc="TextWorld games compiled",
                    total=len(self),
                    initial=sum(recipe.path.exists() for recipe in self._recipes),
                    unit="game",
                    delay=2,
                    leave=False,
                    disable=multiprocessing.parent_process()
                    is not None,  # workers would write over each other
                )
            _compile(_generate(recipe), recipe.path)
            self._bar.update()
            if all(other.path.exists() for other in self._recipes):
                self.close()
        return recipe.path

    def close(self) -> None:
        """Close the progress bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class GivenGames:
    """Games that are files: compiled ones (.z8 with their .json beside), or .json alone, compiled when first
    played.

    Args:
        files: paths, folders or patterns such as `games/*.z8`.

    Raises:
        ValueError: where there is no such file, or one is of another kind.
    """

    def __init__(self, files: str | Sequence[str]) -> None:
        names = [files] if isinstance(files, str) else files
        self._paths = list(dict.fromkeys(_compiled_beside(path) for name in names for path in _files(name)))

    def __len__(self) -> int:
        return len(self._paths)

    def path(self, index: int) -> Path:
        path = self._paths[index]
        if path.suffix == ".z8":
            return path
        content = path.read_bytes()
        target = _folder() / f"{path.stem}-{hashlib.sha256(content).hexdigest()[:16]}.z8"
        if not target.exists():
            from textworld import Game

            _compile(Game.load(str(path)), target)
        return target

    def close(self) -> None:
        """Do nothing: no file stays open."""


@cache
def made_games(
    rooms: Amount, objects: Amount, quest_length: Amount, games: int, first_game: int
) -> MadeGames:
    """Games number `first_game` to `first_game + games - 1`.

    The same games are the same object, so that they share a progress bar. Where an amount is a range, a
    game's own is drawn by its number.
    """
    ranges = {
        "rooms": _range("rooms", rooms, 1),
        "objects": _range("objects", objects, 0),
        "quest_length": _range("quest_length", quest_length, 1),
    }
    if games < 1 or first_game < 0:
        raise ConfigError(
            f"games is {games} and first_game {first_game}; give 1 or more games, from number 0 or later."
        )
    recipes = []
    for number in range(first_game, first_game + games):
        rng = random.Random(number)
        amounts = {name: rng.randint(low, high) for name, (low, high) in ranges.items()}
        recipes.append(Recipe(**amounts, seed=number))
    return MadeGames(recipes)


def _range(name: str, amount: Amount, least: int) -> tuple[int, int]:
    low, high = (
        (amount, amount)
        if isinstance(amount, int)
        else (amount[0], amount[-1])
        if len(amount) == 2
        else (0, -1)
    )
    if not least <= low <= high:
        raise ConfigError(f"{name} is {amount}; give a number, {least} or more, or [lowest, highest].")
    return low, high


def _folder() -> Path:
    import textworld

    return cache_folder() / "textworld" / textworld.__version__


def _files(name: str) -> list[Path]:
    path = Path(name).expanduser()
    matches = map(Path, glob(str(path)))
    paths = (file for file in path.iterdir() if file.suffix in (".z8", ".json")) if path.is_dir() else matches
    files = sorted(paths)  # so that a game's index does not depend on the disk
    if not files:
        raise ConfigError(
            f"files: there is no game at {name!r}; give .z8 or .json files, a folder of them, or a pattern."
        )
    return files


def _compiled_beside(path: Path) -> Path:
    if path.suffix not in (".z8", ".json"):
        raise ConfigError(
            f"files: {str(path)!r} is no game that TextWorld still plays: give .z8 or .json. A .ulx game is "
            "compiled anew from the .json that `tw-make` wrote beside it."
        )
    if not path.with_suffix(".json").is_file():
        raise ConfigError(
            f"files: {str(path)!r} has no {path.with_suffix('.json').name} beside it, which says its "
            "commands."
        )
    return path.with_suffix(".z8") if path.with_suffix(".z8").is_file() else path


def _generate(recipe: Recipe) -> Any:
    from textworld import GameOptions
    from textworld.generator import QuestGenerationError, make_game
    from textworld.generator.vtypes import NotEnoughNounsError
    from textworld.generator.world import NoFreeExitError

    options = GameOptions()
    options.nb_rooms = recipe.rooms
    options.nb_objects = recipe.objects
    options.quest_length = recipe.quest_length
    options.seeds = recipe.seed
    try:
        return make_game(options)
    except (QuestGenerationError, NotEnoughNounsError, NoFreeExitError, AttributeError) as error:
        # AttributeError: how TextWorld 1.7 fails to say that it has no names left.
        raise ConfigError(
            f"TextWorld cannot make a game of {recipe.rooms} rooms, {recipe.objects} objects and a quest of "
            f"{recipe.quest_length} steps from seed {recipe.seed}: {error}. Give other numbers."
        ) from error


def _compile(game: Any, target: Path) -> None:
    """Compile beside the target, then rename, the .z8 last: where it is, the game is whole."""
    from textworld import GameOptions
    from textworld.generator import compile_game

    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        options = GameOptions()
        options.path = str(Path(scratch) / target.name)
        compile_game(game, options)
        for suffix in (".json", ".z8"):
            (Path(scratch) / target.name).with_suffix(suffix).replace(target.with_suffix(suffix))
