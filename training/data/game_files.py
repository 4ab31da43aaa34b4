"""Games from files, to learn from: batches of self-play, games of chess in PGN, games of Go in SGF.

What cannot be used is left out and told with its place; reading never ends for it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from configs.load import load_settings
from configs.schema import SEED_FILES
from games.bad_game import BadGame
from games.game import Game
from training.common.files import read_limited
from training.data.imported_games import ImportedGame, batch_of_files, in_batches
from training.data.records import LAYOUT, BatchLimits, CorruptBatch, GameBatch, decode
from training.data.seed_games import games_in
from training.data.verify import verify

BATCHES, SGF = ".games", ".sgf"
SAMPLE = Path("samples") / "connect_four"  # in the checkout; the folder is named after the game
KINDS = (BATCHES, *(ending for endings in SEED_FILES.values() for ending in endings))
PROBE_BYTES = 2**20
PACKED_LINE = 12.0  # bytes of a line of a packed PGN file, about


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Some games of a file."""

    games: GameBatch | None
    bad: tuple[str, ...]  # a line for each game, or file, that was left out: where it is, and why
    read: float = 1.0  # about what share of the file has been read


def find_files(data: Path) -> list[Path]:
    """The files with games in a folder and those below it, or in a run's folder those of the run; sorted.

    Raises:
        ValueError: there are none.
    """
    if data.is_file():
        return [data]
    folder = data / "games" if (data / "run.db").exists() else data
    found = sorted(path for path in folder.rglob("*") if path.name.lower().endswith(KINDS) and path.is_file())
    if not found:
        there = "is not there" if not data.exists() else f"has no files {', '.join(f'*{kind}' for kind in KINDS)}"
        raise ValueError(f"--data {data} {there}: name a run's folder, or one with batches of games, PGN or SGF files")
    return found


def games_at_hand(runs: Path, game: str | None = None) -> Path:
    """The run in the folder ``runs`` that has last written games of ``game``, or of any; else the sample games of the
    checkout.

    Raises:
        ValueError: neither is of ``game``.
    """
    newest_first = sorted((path.stat().st_mtime, path.parent) for path in runs.glob("*/run.db"))[::-1]
    for _, run in newest_first:
        if next((run / "games").glob(f"*{BATCHES}"), None) and game in (None, _game_of(run)):
            return run
    if game in (None, SAMPLE.name):
        return SAMPLE
    raise ValueError(
        f"there is no run with games of {game} in {runs}/ to learn from: name a run's folder, or files of games, by --data"
    )


def _game_of(run: Path) -> str | None:
    """What is played in a run; None where that cannot be told."""
    try:
        return load_settings(run / "config.yaml").game.name
    except (OSError, ValueError):
        return None


def file_size(path: Path) -> int:
    """Its bytes, or -1 where it is not."""
    return path.stat().st_size if path.is_file() else -1


def read_game_file(path: Path, game: Game) -> Iterator[Chunk]:
    """The games in a file, a few at a time."""
    try:
        if path.suffix.lower() == BATCHES:
            yield _batch(path, game)
        else:
            yield from _played_elsewhere(path, game)
    except (OSError, ValueError) as error:
        text = str(error)
        yield Chunk(games=None, bad=(text if str(path) in text else f"{path}: {text}",))


def _batch(path: Path, game: Game) -> Chunk:
    """A batch of self-play, without the games that could not have happened."""
    batch = decode(read_limited(path, BatchLimits().max_bytes))
    try:
        verify(batch, game)
        return Chunk(games=batch, bad=())
    except CorruptBatch:
        alone = replace(batch, **_columns(batch, [0]))
        verify(replace(alone, lengths=batch.lengths[:0], returns=batch.returns[:0]), game)  # of this game at all?
    good, bad = [], []
    for index in range(batch.num_games):
        try:
            verify(replace(batch, **_columns(batch, [index])), game)
            good.append(index)
        except CorruptBatch as error:
            bad.append(f"{path}: game {index + 1} of {batch.num_games}: {str(error).removeprefix('game 0 ')}")
    return Chunk(games=replace(batch, **_columns(batch, good)) if good else None, bad=tuple(bad))


def _columns(batch: GameBatch, games: Sequence[int]) -> dict[str, Any]:
    """The columns of some games of a batch."""
    chosen = np.zeros(batch.num_games, np.bool_)
    chosen[list(games)] = True
    positions = np.repeat(chosen, batch.lengths)
    masks = {"G": chosen, "M": positions, "E": np.repeat(positions, batch.policy_sizes)}
    return {name: getattr(batch, name)[masks[axes[0]]] for name, (_, axes) in LAYOUT.items()}


def _played_elsewhere(path: Path, game: Game) -> Iterator[Chunk]:
    bad: list[str] = []
    lines = _about_how_many_lines(path)
    last = 0

    def good() -> Iterator[ImportedGame]:
        nonlocal last
        for found in games_in(path, "go" if path.suffix.lower() == SGF else "chess", game):
            last = found.line
            if isinstance(found, BadGame):
                bad.append(f"{path}: line {found.line}: {found.reason}")
            else:
                yield found

    for games in in_batches(good()):
        yield Chunk(games=batch_of_files(games, game), bad=tuple(bad), read=min(1.0, last / lines))
        bad.clear()
    yield Chunk(games=None, bad=tuple(bad))


def _about_how_many_lines(path: Path) -> float:
    """By the length of the first ones; what is packed has about four times the bytes."""
    with path.open("rb") as file:
        begin = file.read(PROBE_BYTES)
    packed = path.suffix == ".zst"
    lines, length = (1, PACKED_LINE) if packed else (begin.count(b"\n"), len(begin))
    return max(1.0, lines * file_size(path) / max(1, length))
