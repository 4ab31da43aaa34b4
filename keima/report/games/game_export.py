"""The games of a run in standard formats: chess as PGN, Go as SGF."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

from keima.base.files import PART, write_atomically
from keima.config.sections.training import SEED_ACCOUNTS
from keima.data.imports.imported_games import state_after_actions
from keima.data.ledger import read_ledger
from keima.data.receive import load_received
from keima.data.records import AGREED, GameRecord
from keima.games import Game
from keima.games.go.sgf import point_name, score_text, sgf_text
from keima.report.games.game_view import PositionView, load_game_of_run, make_position_views

CANDIDATES = 5  # moves per position that are written with their shares
COLORS = "Black", "White"


@dataclass(frozen=True, kw_only=True)
class ExportedGame:
    """A self-play game and its origin."""

    game: Game
    record: GameRecord
    number: int  # in the run, from 1, in the order of receipt
    event: str
    worker: str
    received: datetime

    @property
    def player(self) -> str:
        """Both players, named after the network's versions."""
        first, last = int(self.record.first_model), int(self.record.last_model)
        return f"Model {first}" if first == last else f"Models {first} to {last}"


def read_exported_games(run: Path, *, name: str, form: str) -> Iterator[ExportedGame]:
    """Yield every self-play game of a run of the game ``name``, in order of receipt, without games from files.

    Args:
        form: what they are written as, for people.

    Raises:
        ValueError: there is no such run, it plays another game, or a file of games is damaged.
        OSError: a file of games is missing or unreadable.
    """
    with read_ledger(run) as ledger:
        game, rows, times = load_game_of_run(ledger), ledger.received_batches(), ledger.times("batches")
    if game.name != name:
        raise ValueError(f"{run} is a run of {game.name}: only games of {name} can be written as {form}")
    number = 0
    for row in rows:
        if row.worker not in SEED_ACCOUNTS.values():
            batch = load_received(run, row)
            received = datetime.fromtimestamp(times[row.sequence], UTC)
            for index in range(batch.num_games):
                yield ExportedGame(
                    game=game,
                    record=batch.game_record(index),
                    number=number + index + 1,
                    event=f"Self-play of {run.resolve().name}",
                    worker=row.worker,
                    received=received,
                )
        number += row.games


def export_as_pgn(run: Path) -> Iterator[str]:
    """Yield the games of a run of chess, each as PGN. Round is the game's number in the run.

    Raises:
        ValueError, OSError: as ``read_exported_games``.
    """
    from keima.games.chess.pgn import pgn_text

    for each in read_exported_games(run, name="chess", form="PGN"):
        won = float(each.record.returns[0])
        tags = {
            "Event": each.event,
            "Site": each.worker,
            "Date": f"{each.received:%Y.%m.%d}",
            "Round": str(each.number),
            "White": each.player,
            "Black": each.player,
            "Termination": _pgn_termination(each.game, each.record),
            "PlyCount": str(each.record.actions.size),
        }
        yield pgn_text(
            each.game,
            each.record.actions.tolist(),
            tags=tags,
            result="1-0" if won > 0 else "0-1" if won < 0 else "1/2-1/2",
        )


def _pgn_termination(game: Game, record: GameRecord) -> str:
    if record.resigned:
        return "agreed draw" if record.resigned == AGREED else "resignation"
    from keima.games.chess.notation import describe_ending

    return describe_ending(state_after_actions(game, record.actions))


def export_as_sgf(run: Path) -> Iterator[str]:
    """Yield the games of a run of Go, each as SGF, with search's view of each position.

    That is Black's chance to win in percent, as a comment and as SBKV, from which Sabaki draws its graph; and where the
    search was a full one, the shares of the likeliest moves, as labels and in the comment.

    Raises:
        ValueError, OSError: as ``read_exported_games``.
    """
    for each in read_exported_games(run, name="go", form="SGF"):
        moments = make_position_views(each.game, each.record)[:-1]
        yield sgf_text(
            each.game,
            each.record.actions.tolist(),
            tags={
                "EV": each.event,
                "PC": each.worker,
                "DT": f"{each.received:%Y-%m-%d}",
                "RO": str(each.number),
                "PB": each.player,
                "PW": each.player,
            },
            result=_sgf_result(each.game, each.record),
            comments=[_sgf_comment(moment) for moment in moments],
            marks=[_sgf_marks(each.game, moment) for moment in moments],
        )


def _sgf_result(game: Game, record: GameRecord) -> str:
    won = float(record.returns[0])
    if record.resigned or won == 0:
        return "0" if won == 0 else f"{'B' if won > 0 else 'W'}+R"
    from keima.games.go.rules import score_lead

    return score_text(score_lead(state_after_actions(game, record.actions)))


def _black_winning_chance(moment: PositionView) -> float:
    """Return Black's winning chance in percent according to search; a draw is half a win."""
    assert moment.value is not None
    return 50 + 50 * moment.value * (1 if moment.player == 0 else -1)


def _sgf_comment(moment: PositionView) -> str:
    lines = [f"Search: Black wins with {_black_winning_chance(moment):.0f} %"]
    if moment.policy:
        lines.append(", ".join(f"{move} {share:.1%}" for move, share in moment.policy[:CANDIDATES]))
    lines.append(f"{COLORS[moment.player]} plays {moment.move}{', drawn at random' if moment.drawn else ''}")
    return "\n".join(lines)


def _sgf_marks(game: Game, moment: PositionView) -> dict[str, list[str]]:
    points = [(game.parse_action(move), share) for move, share in moment.policy[:CANDIDATES] if move != "pass"]
    labels = [f"{point_name(game.options['size'], action)}:{100 * share:.0f}" for action, share in points]
    return {"SBKV": [f"{_black_winning_chance(moment):.1f}"]} | ({"LB": labels} if labels else {})


def write_games(path: Path, games: Iterator[str]) -> int:
    """Write games to one file, which appears whole, or each to its own file if ``path`` is a folder.

    Returns how many there are. What is wrong with the run shows before anything is written.
    """
    first = next(games, "")
    return (_write_folder if path.is_dir() else _write_file)(path, chain([first] if first else [], games))


def _write_file(path: Path, games: Iterable[str]) -> int:
    number, part = 0, path.with_name(path.name + PART)
    try:
        with part.open("w", encoding="utf-8", newline="\n") as file:
            for number, text in enumerate(games, 1):  # noqa: B007 (counted)
                file.write(text)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return number


def _write_folder(folder: Path, games: Iterable[str]) -> int:
    number = 0
    for number, text in enumerate(games, 1):
        ending = "sgf" if text.startswith("(") else "pgn"
        write_atomically(folder / f"game-{number:06d}.{ending}", text.encode(), mode=0o644, durable=False)
    return number
