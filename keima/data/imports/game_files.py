"""Training games from files: batches of self-play, chess games in PGN, Go games in SGF.

Unusable games are left out and reported with their place; they never stop the reader.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from keima.base.files import read_limited
from keima.config.load import load_settings
from keima.config.sections.training import SEED_FILES
from keima.data.imports.imported_games import ImportedGame, group_into_batches, make_imported_batch
from keima.data.imports.seed_games import read_games_of_kind
from keima.data.packs import is_pack, list_packed, read_pack
from keima.data.records import LAYOUT, BatchLimits, CorruptBatch, GameBatch, decode_batch
from keima.data.verify import verify_batch
from keima.games.authoring.bad_game import BadGame
from keima.games.game import Game

BATCHES, SGF = ".games", ".sgf"
SAMPLE = Path("samples") / "connect_four"  # in the checkout; named after its game
FILE_KINDS = (BATCHES, *(ending for endings in SEED_FILES.values() for ending in endings))
PROBE_BYTES = 2**20
PACKED_LINE = 12.0  # average bytes per line of a compressed PGN file


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Some games of a file."""

    games: GameBatch | None
    bad: tuple[str, ...]  # per game or file left out: its place and the reason
    read: float = 1.0  # estimated share of the file read so far


def find_game_files(data: Path) -> list[Path]:
    """Return the game files in a folder and its subfolders, or the games of a run in its folder; sorted.

    Raises:
        ValueError: there are none.
    """
    if data.is_file():
        return [data]
    folder = data / "games" if (data / "run.db").exists() else data
    found = sorted(
        path
        for path in folder.rglob("*")
        if (path.name.lower().endswith(FILE_KINDS) or is_pack(path)) and path.is_file()
    )
    if not found:
        there = (
            "does not exist" if not data.exists() else f"has no files {', '.join(f'*{kind}' for kind in FILE_KINDS)}"
        )
        raise ValueError(f"--data {data} {there}: give a run's folder, or a folder with game batches, PGN or SGF files")
    return found


def find_games(runs: Path, game: str | None = None) -> Path:
    """Return the newest run in ``runs`` that has games of ``game`` (or of any game), else the sample games of the
    checkout.

    Raises:
        ValueError: neither is of ``game``.
    """
    newest_first = sorted((path.stat().st_mtime, path.parent) for path in runs.glob("*/run.db"))[::-1]
    for _, run in newest_first:
        if next((run / "games").glob(f"*{BATCHES}"), None) and game in (None, _read_game_name(run)):
            return run
    if game in (None, SAMPLE.name):
        return SAMPLE
    raise ValueError(f"{runs}/ has no run with games of {game}: give a run's folder, or files of games, with --data")


def _read_game_name(run: Path) -> str | None:
    """Return the game of a run; None if its settings cannot be read."""
    try:
        return load_settings(run / "config.yaml").game.name
    except (OSError, ValueError):
        return None


def file_size(path: Path) -> int:
    """Return the size in bytes; -1 if there is no such file."""
    return path.stat().st_size if path.is_file() else -1


def read_game_file(path: Path, game: Game) -> Iterator[Chunk]:
    """Yield the games in a file, a few at a time."""
    try:
        if path.suffix.lower() == BATCHES:
            yield _read_batch(read_limited(path, BatchLimits().max_bytes), game, str(path))
        elif is_pack(path):
            names = list_packed(path)
            for number, (name, data) in enumerate(read_pack(path), start=1):
                yield replace(_read_batch(data, game, f"{path}/{name}"), read=number / len(names))
        else:
            yield from _read_imported(path, game)
    except (OSError, ValueError) as error:
        text = str(error)
        yield Chunk(games=None, bad=(text if str(path) in text else f"{path}: {text}",))


def _read_batch(data: bytes, game: Game, place: str) -> Chunk:
    """Decode a batch of self-play and remove its invalid games."""
    batch = decode_batch(data)
    try:
        verify_batch(batch, game)
        return Chunk(games=batch, bad=())
    except CorruptBatch:
        alone = replace(batch, **_select_columns(batch, [0]))
        verify_batch(
            replace(alone, lengths=batch.lengths[:0], returns=batch.returns[:0]), game
        )  # raises unless it is of this game
    good, bad = [], []
    for index in range(batch.num_games):
        try:
            verify_batch(replace(batch, **_select_columns(batch, [index])), game)
            good.append(index)
        except CorruptBatch as error:
            bad.append(f"{place}: game {index + 1} of {batch.num_games}: {str(error).removeprefix('game 0 ')}")
    return Chunk(games=replace(batch, **_select_columns(batch, good)) if good else None, bad=tuple(bad))


def _select_columns(batch: GameBatch, games: Sequence[int]) -> dict[str, Any]:
    """Return the columns of some games of a batch."""
    chosen = np.zeros(batch.num_games, np.bool_)
    chosen[list(games)] = True
    positions = np.repeat(chosen, batch.lengths)
    masks = {"G": chosen, "M": positions, "E": np.repeat(positions, batch.policy_sizes)}
    return {name: getattr(batch, name)[masks[axes[0]]] for name, (_, axes) in LAYOUT.items()}


def _read_imported(path: Path, game: Game) -> Iterator[Chunk]:
    bad: list[str] = []
    lines = _estimate_lines(path)
    last = 0

    def read_good_games() -> Iterator[ImportedGame]:
        nonlocal last
        for found in read_games_of_kind(path, "go" if path.suffix.lower() == SGF else "chess", game):
            last = found.line
            if isinstance(found, BadGame):
                bad.append(f"{path}: line {found.line}: {found.reason}")
            else:
                yield found

    for games in group_into_batches(read_good_games()):
        yield Chunk(games=make_imported_batch(games, game), bad=tuple(bad), read=min(1.0, last / lines))
        bad.clear()
    yield Chunk(games=None, bad=tuple(bad))


def _estimate_lines(path: Path) -> float:
    """Estimate the number of lines from the first ones."""
    with path.open("rb") as file:
        begin = file.read(PROBE_BYTES)
    packed = path.suffix == ".zst"
    lines, length = (1, PACKED_LINE) if packed else (begin.count(b"\n"), len(begin))
    return max(1.0, lines * file_size(path) / max(1, length))
