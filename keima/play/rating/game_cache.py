"""Results of games that were played before, on disk: a repeated or longer call continues instead of repeating.

They belong to a key: the SHA-256 of everything on which the games depend. The files can be made again, so one that is
broken counts as missing.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, NonNegativeFloat, NonNegativeInt, PositiveInt, ValidationError

from keima.base.files import read_limited, sha256_hex, write_atomically
from keima.compilation.sources import cache_folder
from keima.evaluation.match_worker import make_match_search_settings
from keima.games import Game
from keima.paths import CACHE, PACKAGE
from keima.play.arena.players import AnyPlayerSpec, NetworkSpec

RATINGS = CACHE / "ratings"
MAX_BYTES = 10_000_000
SEPARATORS = re.compile(r"[\s=,]")  # --weights=net.gz, setoption name EvalFile value net.nnue
FORMAT = 1  # of the files, and of how games follow from their seeds
# With all that it imports: the searches of networks and built-in players, and what tells engines the game. Their code
# is part of the key, as the games depend on it.
PLAYERS = PACKAGE / "play" / "arena" / "players.py"


class StoredGames(BaseModel):
    """A batch of games, one after the other from ``first``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    first: NonNegativeInt
    games: PositiveInt
    wins: NonNegativeInt = 0
    draws: NonNegativeInt = 0
    losses: NonNegativeInt = 0
    scores: tuple[float, ...] = ()  # of games for one player
    reached: tuple[int, ...] = ()  # the milestones of these
    seconds: NonNegativeFloat  # until they had ended


class _StoredFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    about: dict[str, Any]
    batches: tuple[StoredGames, ...]


class GameCache:
    """The games of a network with a search.

    Args:
        game: the game.
        network: what plays.
        seed: of the openings.
        opening_plies: random moves that begin each game.
        folder: of the files; by default ``RATINGS``.
    """

    def __init__(
        self, game: Game, network: NetworkSpec, *, seed: int, opening_plies: int, folder: Path | None = None
    ) -> None:
        self._folder = folder or RATINGS
        self._about = {
            "format": FORMAT,
            "players": cache_folder(PLAYERS).name,  # with the digest of their sources
            "game": game.name,
            "options": game.options,
            "rules_version": game.rules_version,
            "model": sha256_hex(network.model.read_bytes()),
            "search": make_match_search_settings(network.search).model_dump(mode="json"),
            "simulations": network.num_simulations,
            "device": network.device,
            "seed": seed,
            "opening_plies": opening_plies,
        }

    def read(self, opponent: AnyPlayerSpec | None) -> list[StoredGames]:
        """Return the games against an opponent, or of a game for one player, from the first one on without a gap."""
        return _read_batches(self._file(opponent)[0])

    def add(self, opponent: AnyPlayerSpec | None, games: StoredGames) -> None:
        """Store more games.

        Raises:
            OSError: they cannot be written.
        """
        path, about = self._file(opponent)
        content = _StoredFile(about=about, batches=(*_read_batches(path), games))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content.model_dump_json(indent=1).encode(), durable=False)

    def forget(self, opponent: AnyPlayerSpec | None) -> None:
        """Remove all games against an opponent."""
        self._file(opponent)[0].unlink(missing_ok=True)

    def _file(self, opponent: AnyPlayerSpec | None) -> tuple[Path, dict[str, Any]]:
        about = {**self._about, "opponent": None if opponent is None else describe_opponent(opponent)}
        key = sha256_hex(json.dumps(about, sort_keys=True).encode())
        return self._folder / f"{key[:40]}.json", about


def _read_batches(path: Path) -> list[StoredGames]:
    try:
        stored = _StoredFile.model_validate_json(read_limited(path, MAX_BYTES))
    except (OSError, ValueError, ValidationError):
        return []
    found = list[StoredGames]()
    for batch in sorted(stored.batches, key=lambda batch: batch.first):
        if batch.first == sum(each.games for each in found):
            found.append(batch)
    return found


def describe_opponent(spec: AnyPlayerSpec) -> Mapping[str, Any]:
    """Return what the games against an opponent depend on: its settings, and the content of all files that its command
    and its other lines name.

    So an engine or a network of its that is replaced by another plays anew.
    """
    about = spec.model_dump(mode="json")
    lines = [*about.get("command", ()), *(about.get("setup") or ()), *about.get("files", ())]
    words = {word for line in lines for word in (line, *SEPARATORS.split(line))}
    about["files"] = {word: digest for word in sorted(words) if (digest := _digest_of_file(word))}
    return about


def _digest_of_file(word: str) -> str | None:
    """Return the SHA-256 of the file with this name, which has a point or a folder; None if it is none."""
    if "." not in word and "/" not in word:
        return None
    with suppress(OSError, RuntimeError, ValueError):  # a word that cannot be a path, or an unknown user's ~
        path = Path(word).expanduser()
        if path.is_file():
            return sha256_hex(path.read_bytes())
    return None
