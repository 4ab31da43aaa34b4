"""The games of a run of chess as PGN."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from configs.schema import SEED_ACCOUNTS
from games import Game
from games.chess_notation import ending_of
from games.pgn import pgn_text
from training.game_view import game_of
from training.ledger import read_ledger
from training.played_games import played_until_the_end
from training.receive import games_path, load_received
from training.records import AGREED, GameRecord


def games_as_pgn(run: Path) -> Iterator[str]:
    """Every game of self-play that a run has, in order of receipt, one after the other; those that came from PGN files are left out.

    Round is the game's number in the run, and players are called after the versions of the network.

    Raises:
        ValueError: there is no such run, it does not play chess, or a file of games is damaged.
        OSError: a file of games is missing or unreadable.
    """
    with read_ledger(run) as ledger:
        game, rows = game_of(ledger), ledger.received_batches()
    if game.name != "chess":
        raise ValueError(f"{run} is a run of {game.name}: only games of chess can be written as PGN")
    number = 0
    for row in rows:
        if row.worker not in SEED_ACCOUNTS.values():
            batch = load_received(run, row)
            received = datetime.fromtimestamp(games_path(run, row.id).stat().st_mtime, UTC)
            tags = {"Event": f"Self-play of {run.resolve().name}", "Site": row.worker, "Date": f"{received:%Y.%m.%d}"}
            for index in range(batch.num_games):
                yield _text(game, batch.game_record(index), tags | {"Round": str(number + index + 1)})
        number += row.games


def _text(game: Game, record: GameRecord, tags: dict[str, str]) -> str:
    first, last = int(record.first_model), int(record.last_model)
    player = f"Model {first}" if first == last else f"Models {first} to {last}"
    won = float(record.returns[0])
    tags |= {"White": player, "Black": player, "Termination": _termination(game, record), "PlyCount": str(record.actions.size)}
    return pgn_text(game, record.actions.tolist(), tags=tags, result="1-0" if won > 0 else "0-1" if won < 0 else "1/2-1/2")


def _termination(game: Game, record: GameRecord) -> str:
    if record.resigned:
        return "agreed draw" if record.resigned == AGREED else "resignation"
    state = game.initial_state()
    played_until_the_end(game.rules, state, record.actions)
    return ending_of(state)
