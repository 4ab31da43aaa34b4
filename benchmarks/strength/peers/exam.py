"""The exam of trained networks: solved positions, and matches."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Ratio
from benchmarks.strength.peers.adapter import write_json
from benchmarks.strength.peers.peer_runs import PeerRun
from keima.base.reports.intervals import wilson_interval
from keima.evaluation.match import draw_opening_moves, play_match_from, play_opening_moves
from keima.evaluation.match_location import OPENING_PLIES
from keima.evaluation.perfect_play import (
    POSITIONS_FILE,
    PlayErrors,
    SolvedPositions,
    count_errors,
    load_positions,
    read_moves,
)
from keima.games import Game, load_game
from keima.play.rating.perfect_player import BOOK_PLIES, has_perfect_player, solve_positions


@dataclass(frozen=True, kw_only=True)
class Exam:
    """What networks are judged by; their answers and games are kept in the folders of their runs.

    Attributes:
        moves: to each solved position.
        opening_moves: to each position of the opening.
        openings: these positions; None without BitBully.
        simulations: of each search.
        pairs: of games in a match.
    """

    game: Game
    moves: list[list[int]]
    solved: SolvedPositions
    opening_moves: list[list[int]]
    openings: SolvedPositions | None
    simulations: int
    pairs: int

    def _answers(self, run: PeerRun) -> Path:
        return run.path / f"answers-{self.simulations}-{len(self.moves)}.json"

    def _match(self, run: PeerRun) -> Path:
        return run.path / f"match-{self.simulations}-{self.pairs}.json"

    def ask(self, run: PeerRun) -> None:
        """Let a network choose in all positions."""
        if self._answers(run).exists():
            return
        print(f"Asking {run.path.name}", flush=True)
        with run.player(self.simulations) as player:
            write_json(self._answers(run), player.ask([*self.moves, *self.opening_moves]))

    def play(self, run: PeerRun, rival: PeerRun) -> None:
        """Let a network play against another."""
        if self._match(run).exists():
            return
        print(f"Playing {run.path.name}", flush=True)
        opened = draw_opening_moves(self.game, self.pairs, OPENING_PLIES, run.task.seed)
        starts = play_opening_moves(self.game, opened)
        with run.player(self.simulations) as first, rival.player(self.simulations) as second:
            found = play_match_from(self.game, starts, first, second, opening_moves=opened)
        write_json(self._match(run), {"wins": found.wins, "draws": found.draws, "losses": found.losses})

    def rate_answers(self, run: PeerRun) -> list[Ratio | None]:
        """Return the errors of search and policy in the solved positions, and of search in openings, in per cent."""
        answers = _read(self._answers(run))
        if answers is None:
            return [None, None, None]
        count = len(self.moves)
        search, policy = (np.array(answers[way]) for way in ("search", "policy"))
        return [
            in_per_cent(count_errors(self.solved, search[:count])),
            in_per_cent(count_errors(self.solved, policy[:count])),
            in_per_cent(count_errors(self.openings, search[count:])) if self.openings else None,
        ]

    def rate_match(self, run: PeerRun) -> Ratio | None:
        """Return the score of a network's match."""
        match = _read(self._match(run))
        if match is None:
            return None
        points, games = match["wins"] + match["draws"] / 2, sum(match.values())
        return Ratio(points / games, *wilson_interval(points, games))


def make_exam(*, positions: int, simulations: int, pairs: int) -> Exam:
    """Return the exam with the first so many of the shipped positions, and openings of the games that led to them."""
    game = load_game("connect_four")
    solved, moves = load_positions(game), [played.tolist() for played in read_moves(game, POSITIONS_FILE)][:positions]
    assert solved is not None
    opening_moves = find_openings(moves)
    return Exam(
        game=game,
        moves=moves,
        solved=solved.select(np.arange(len(moves))),
        opening_moves=opening_moves,
        openings=solve_positions(game, opening_moves) if has_perfect_player() else None,
        simulations=simulations,
        pairs=pairs,
    )


def find_openings(moves: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the first moves of each of these games, in turn 0 to 11 of them, without repetition."""
    found = dict.fromkeys(tuple(played[: number % BOOK_PLIES]) for number, played in enumerate(moves))
    return [list(played) for played in found]


def in_per_cent(errors: PlayErrors) -> Ratio:
    """Return the share of errors with its interval, in per cent."""
    return Ratio(*(100 * share for share in (errors.share, *errors.interval)))


def _read(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
