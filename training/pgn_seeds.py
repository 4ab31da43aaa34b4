"""Taking in the games of PGN files, with which a run begins, so that each is learned from exactly once whatever happens meanwhile.

They become batches like those of workers, in the account of a worker called ``PGN_FILES``: verified by the rules, kept in games/ and
entered in the books. A batch is called after the file's SHA-256 and its number in it. So a sitting that was killed is gone on with by
making the same batches again and leaving out those that the books have.
"""

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from configs.schema import PGN_FILES
from games import Game
from games.pgn import BadGame
from training.ledger import Ledger
from training.pgn_games import PlayedGame, batch_of, games_of_pgn, in_batches
from training.receive import Quarantined, receive
from training.records import encode

log = logging.getLogger(__name__)

BEGUN, DONE = "pgn begun", "pgn taken in"  # events in the books; their texts begin with the path
LOGGED, TOLD = 1_000, 3  # games of a file that are left out: so many are logged one by one, and told


@dataclass
class LeftOut:
    """The games of a file that are not learned from."""

    path: Path
    count: int = 0
    first: list[BadGame] = field(default_factory=list)

    def without(self, games: Iterable[PlayedGame | BadGame]) -> Iterator[PlayedGame]:
        """The games without those that are left out, which are counted and logged."""
        for game in games:
            if isinstance(game, PlayedGame):
                yield game
                continue
            self.count += 1
            if self.count <= TOLD:
                self.first.append(game)
            if self.count <= LOGGED:
                log.info("%s, line %d: a game is left out: %s", self.path, game.line, game.reason)

    def __str__(self) -> str:
        """How many, and why."""
        reasons = "; ".join(f"line {game.line}: {game.reason}" for game in self.first)
        return f"{self.count:,} left out" + (f" ({reasons}{' ...' if self.count > TOLD else ''})" if reasons else "")


def take_in_pgn_files(ledger: Ledger, game: Game, paths: Sequence[str], *, tell: Callable[[str], None]) -> None:
    """Enter the games of the files that have not been taken in yet. Files that have been are not looked at again.

    Args:
        ledger: the run's books; the caller has recovered what was in place.
        game: what the run plays, which is chess if there are any files.
        paths: the files, in their order.
        tell: is told of each file.

    Raises:
        OSError: a file is missing or unreadable, or the games cannot be kept.
        ValueError: a file has changed since some of its games were taken in, or is packed and damaged.
    """
    for text in paths:
        path = Path(text)
        if _noted(ledger, DONE, path):
            continue
        if not path.is_file():
            raise FileNotFoundError(f"training.window.seed_games: there is no file {path}")
        digest = _digest(path)
        begun = _noted(ledger, BEGUN, path)
        if begun and digest not in begun:
            raise ValueError(f"{path} has changed since some of its games were taken in: put it back as it was, or begin another run")
        if not begun:
            ledger.add_event(BEGUN, f"{path}: SHA-256 {digest}", worker=PGN_FILES)
        counts = _take_in(ledger, game, path, digest)
        ledger.add_event(DONE, f"{path}: {counts}", worker=PGN_FILES)
        log.info("%s: %s", path, counts)
        tell(f"{path}: {counts}")


def _noted(ledger: Ledger, kind: str, path: Path) -> str:
    """What the books say of the file; empty when nothing of this kind."""
    return next((text for noted, _, text, _ in ledger.events() if noted == kind and text.startswith(f"{path}: ")), "")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _take_in(ledger: Ledger, game: Game, path: Path, digest: str) -> str:
    """Take in what the books do not have yet; returns how many games there are and how many are left out."""
    left_out, games, positions = LeftOut(path), 0, 0
    for number, played in enumerate(in_batches(left_out.without(games_of_pgn(path, game))), 1):
        batch_id = f"pgn-{digest[:32]}-{number:06d}"
        if not ledger.batch(batch_id):
            _enter(ledger, game, batch_id, played)
        games += len(played)
        positions += sum(each.actions.size for each in played)
    return f"{games:,} games with {positions:,} positions to learn from, {left_out}"


def _enter(ledger: Ledger, game: Game, batch_id: str, played: Sequence[PlayedGame]) -> None:
    """Receive a batch, for which games are granted first, as for those of workers."""
    account = ledger.books(PGN_FILES)
    lacking = len(played) - account.outstanding  # a killed sitting may have granted them
    if lacking > 0:
        ledger.grant(PGN_FILES, lacking)
    data = encode(batch_of(played, game, first_game=account.next_game, batch_id=batch_id, run_id=ledger.run_id))
    receipt = receive(ledger, game, worker=PGN_FILES, batch_id=batch_id, fetch=lambda limit: data)
    if isinstance(receipt, Quarantined):
        log.warning("batch %s of %s is in quarantine: %s", receipt.batch_id, PGN_FILES, receipt.reason)
