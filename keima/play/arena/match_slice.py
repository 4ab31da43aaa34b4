"""A part of the games between two players of a benchmark, in a separate process (``slices``).

Openings are those of the whole match, so that slices differ in them, however many there are.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from keima.base.random import seed_stream
from keima.evaluation.match import (
    Player,
    choose_actions,
    count_wins_draws_losses,
    draw_opening_moves,
    make_chance_streams,
    play_chance_outcomes,
    play_match_from,
    play_opening_moves,
)
from keima.games import Game, load_game
from keima.games.game import Actions, States
from keima.networks.inference.evaluator import pick_device
from keima.play.arena.players import AnyPlayerSpec, EngineSpec, NetworkSpec, PlayerSpec, make_player
from keima.play.arena.slices import JobMessage, JobStatus, ProgressReporter, Report


class MatchJob(JobMessage):
    """Pairs ``first_pair`` to ``first_pair + pairs - 1`` of a match."""

    game: str
    options: dict[str, Any]
    first: PlayerSpec
    second: PlayerSpec
    match_pairs: int
    first_pair: int
    pairs: int
    opening_plies: int
    seed: int


class MatchLine(JobStatus):
    """The status of a job, and at the end its games."""

    wins: int = 0  # of the first player
    draws: int = 0
    losses: int = 0
    # Thinking time of each player: processor time, or wall time if it computes elsewhere.
    seconds: tuple[float, float] = (
        0.0,
        0.0,
    )
    chosen: tuple[int, int] = (0, 0)  # moves of each player
    scores: tuple[float, ...] = ()  # of each game, pair by pair, as ``MatchResult`` has them
    games: tuple[tuple[int, ...], ...] = ()  # the moves of each, including its opening


class TimedPlayer:
    """Counts a player's moves and time."""

    def __init__(self, player: Player, clock: Callable[[], float]) -> None:
        self._player, self._clock = player, clock
        self.seconds, self.moves = 0.0, 0

    def choose(self, states: States) -> Actions:
        """Return the player's moves."""
        return self.choose_with_history(states, states, [()] * len(states))

    def choose_with_history(self, states: States, starts: States, moves: Sequence[Sequence[int]]) -> Actions:
        """Return the player's moves, given the games' history."""
        started = self._clock()
        actions = choose_actions(self._player, states, starts, moves)
        self.seconds += self._clock() - started
        self.moves += len(states)
        return actions


def make_timed_player(game: Game, spec: AnyPlayerSpec, seed: int, *, warm_up: int, stack: ExitStack) -> TimedPlayer:
    """Return a player after a first move (a network in ``warm_up`` games), so that everything is compiled and loaded
    before timing.

    What must be closed after the games goes onto ``stack``.
    """
    player = make_player(game, spec, seed, stack)
    states = game.initial_states(warm_up if isinstance(spec, NetworkSpec) else 1)
    play_chance_outcomes(
        game, states, make_chance_streams(seed, first_pair=0, pairs=len(states), players=1), [[] for _ in states]
    )
    player.choose(states)
    elsewhere = isinstance(spec, EngineSpec) or (
        isinstance(spec, NetworkSpec) and pick_device(spec.device).type != "cpu"
    )
    return TimedPlayer(player, time.perf_counter if elsewhere else time.process_time)


def play_match_job(job: MatchJob, report: Report = lambda line: None) -> MatchLine:
    """Play a job and report its progress; returns the line with its games."""
    game = load_game(job.game, **job.options)
    opened = draw_opening_moves(game, job.match_pairs, job.opening_plies, job.seed)[
        job.first_pair : job.first_pair + job.pairs
    ]
    with ExitStack() as stack:
        first, second = (
            make_timed_player(game, spec, seed_stream(job.seed, side, job.first_pair), warm_up=job.pairs, stack=stack)
            for side, spec in (("first", job.first), ("second", job.second))
        )
        reporter = ProgressReporter(report)

        def line(states: States) -> MatchLine:
            wins, draws, losses = count_wins_draws_losses(game, states)
            return MatchLine(
                ended=wins + draws + losses, moves=first.moves + second.moves, wins=wins, draws=draws, losses=losses
            )

        result = play_match_from(
            game,
            play_opening_moves(game, opened),
            first,
            second,
            seed=job.seed,
            first_pair=job.first_pair,
            opening_moves=opened,
            on_round=lambda states: reporter.report_if_due(lambda: line(states)),
        )
    return MatchLine(
        ended=len(result.moves),
        moves=first.moves + second.moves,
        complete=True,
        wins=result.wins,
        draws=result.draws,
        losses=result.losses,
        seconds=(first.seconds, second.seconds),
        chosen=(first.moves, second.moves),
        scores=tuple(np.ravel(result.scores).tolist()),
        games=result.moves,
    )
