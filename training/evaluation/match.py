"""Matches between two players from paired openings with swapped colours, all games in parallel.

In a game for P players a pair is P games instead of two: the first player has another seat in each, and the second has
all others.

Chance outcomes are moves like others. They depend on the match's seed and the number of the pair alone, not on how a
match is cut into slices, and all games of a pair draw from the same random numbers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from games.compiled import compiled
from games.game import CHANCE, Actions, Game, Rules, States
from training.common.random import Streams, below, seed_stream
from training.search.chance import draw_outcome
from training.search.search import Search

NO_OUTCOME = -1  # where chance is not to move


class Player(Protocol):
    """Chooses moves."""

    def choose(self, states: States) -> Actions:
        """A legal action ``[N]`` for each of the non-terminal ``states`` ``[N, S]``."""


@runtime_checkable
class Follower(Player, Protocol):
    """A player that needs the moves of each game so far."""

    def follow(self, states: States, starts: States, moves: Sequence[Sequence[int]]) -> Actions:
        """Like ``choose``, for ``states`` that were reached from ``starts`` ``[N, S]`` by these ``moves``."""


class SearchPlayer:
    """A network with search."""

    def __init__(self, search: Search) -> None:
        self._search = search

    def choose(self, states: States) -> Actions:
        """The best action that search finds."""
        return self._search.find(states).actions


class RandomPlayer:
    """Plays uniformly random legal moves: the anchor of the ratings, at 0 Elo."""

    def __init__(self, game: Game, seed: int) -> None:
        self._game = game
        self._streams = np.array([seed_stream(seed, "random player")], np.uint64)

    def choose(self, states: States) -> Actions:
        """A uniformly random legal action."""
        return random_actions(self._game.rules.legal_actions, states, self._streams, self._game.num_actions)


@dataclass(frozen=True, kw_only=True)
class MatchResult:
    """The games of a match from the first player's view, one per seat and pair."""

    # [pairs, players] 1 won, 0.5 drawn, 0 lost; with three and more players the return, brought from [-1, 1] to [0, 1].
    # The first player starts the first game of a pair.
    scores: NDArray[np.float64]
    moves: tuple[tuple[int, ...], ...] = ()  # of each game, after its opening

    @property
    def wins(self) -> int:
        """Games that the first player won."""
        return int((self.scores > 0.5).sum())

    @property
    def draws(self) -> int:
        """Drawn games."""
        return int((self.scores == 0.5).sum())

    @property
    def losses(self) -> int:
        """Games that the first player lost."""
        return int((self.scores < 0.5).sum())


def play_match(
    game: Game,
    first: Player,
    second: Player,
    *,
    pairs: int,
    opening_plies: int,
    seed: int,
    poll: Callable[[], None] = lambda: None,
) -> MatchResult:
    """Play ``pairs`` pairs of games: each from one random opening of ``opening_plies`` moves, with swapped colours.

    ``poll`` is called before each round of moves.
    """
    return play_from(game, openings(game, pairs, opening_plies, seed), first, second, seed=seed, poll=poll)


def play_from(
    game: Game,
    starts: States,
    first: Player,
    second: Player,
    *,
    seed: int = 0,
    first_pair: int = 0,
    opened: Actions | None = None,
    poll: Callable[[], None] = lambda: None,
    watch: Callable[[States], None] = lambda states: None,
) -> MatchResult:
    """Play a pair of games from each of ``starts`` ``[pairs, S]``; see ``play_match``.

    Args:
        seed: of the match's chance outcomes.
        first_pair: the number of the first of these pairs, where they are a slice of a match.
        opened: the moves ``[pairs, plies]`` that led to ``starts``, for players that need them.
        watch: called with the states of all games ``[pairs * players, S]`` before each round of moves.
    """
    pairs, players = len(starts), game.num_players
    states = np.repeat(starts, players, axis=0)
    seats = seats_of_first(game, pairs)
    streams = chance_streams(seed, first_pair=first_pair, pairs=pairs, players=players)
    if opened is None:
        begins, opened = starts, np.empty((len(starts), 0), np.int32)
    else:
        begins = game.initial_states(len(starts))
    moves: list[list[int]] = np.repeat(opened, players, axis=0).tolist()
    while True:
        play_chance(game, states, streams, moves)
        running = ~query_all(game.rules.terminal, states).astype(np.bool_)
        if not running.any():
            break
        poll()
        watch(states)
        to_move = query_all(game.rules.current_player, states)
        for player, mine in ((first, to_move == seats), (second, to_move != seats)):
            rows = np.flatnonzero(running & mine)
            if len(rows):
                actions = choose_actions(player, states[rows], begins[rows // players], [moves[row] for row in rows])
                step_rows(game.rules.step, states, rows, actions)
                for row, action in zip(rows, actions, strict=True):
                    moves[row].append(int(action))
    return MatchResult(
        scores=scores_of(game, states), moves=tuple(tuple(game_moves[opened.shape[1] :]) for game_moves in moves)
    )


def chance_streams(seed: int, *, first_pair: int, pairs: int, players: int) -> Streams:
    """The streams ``[pairs * players]`` of chance outcomes in these pairs of a match, the same for all games of one."""
    streams = [seed_stream(seed, "chance", number) for number in range(first_pair, first_pair + pairs)]
    return np.repeat(np.array(streams, np.uint64), players)


def play_chance(game: Game, states: States, streams: Streams, moves: Sequence[list[int]]) -> None:
    """Play outcomes in ``states`` ``[N, S]`` until chance is to move in none, and append them to ``moves``, those of
    the games.
    """
    rows = np.arange(len(states) if game.num_outcomes else 0)
    while len(rows):
        drawn = draw_outcomes(game.rules, states, streams, game.num_outcomes)
        rows = np.flatnonzero(drawn != NO_OUTCOME)
        step_rows(game.rules.step, states, rows, drawn[rows])
        for row in rows.tolist():
            moves[row].append(int(drawn[row]))


def choose_actions(player: Player, states: States, starts: States, moves: Sequence[Sequence[int]]) -> Actions:
    """The actions of a player in ``states``, which were reached from ``starts`` by ``moves``."""
    return player.follow(states, starts, moves) if isinstance(player, Follower) else player.choose(states)


def seats_of_first(game: Game, pairs: int) -> NDArray[np.int64]:
    """The number of the first player's seat in each game ``[pairs * players]``."""
    return np.tile(np.arange(game.num_players), pairs)


def scores_of(game: Game, states: States) -> NDArray[np.float64]:
    """The scores ``[pairs, players]`` of the first player in games with these final ``states``."""
    pairs = len(states) // game.num_players
    returns = np.stack([game.returns(state) for state in states]).astype(np.float64)
    won = returns[np.arange(len(states)), seats_of_first(game, pairs)]
    scores = np.sign(won) if game.num_players == 2 else won
    return ((scores + 1) / 2).reshape(pairs, game.num_players)


def tally(game: Game, states: States) -> tuple[int, int, int]:
    """The first player's wins, draws and losses so far in these games ``[pairs * players, S]``."""
    ended = query_all(game.rules.terminal, states).astype(np.bool_)
    so_far = MatchResult(scores=scores_of(game, states).ravel()[ended])
    return so_far.wins, so_far.draws, so_far.losses


def openings(game: Game, count: int, plies: int, seed: int) -> States:
    """``count`` non-terminal states ``[count, S]`` after ``plies`` random moves or chance outcomes."""
    return states_after(game, opening_moves(game, count, plies, seed))


def opening_moves(game: Game, count: int, plies: int, seed: int) -> Actions:
    """The random moves ``[count, plies]`` that lead to ``openings``."""
    streams = np.array([seed_stream(seed, "openings")], np.uint64)
    moves = np.empty((count, plies), np.int32)
    missing = np.arange(count)
    while len(missing):
        fresh = game.initial_states(len(missing))
        for ply in range(plies):
            rows = np.flatnonzero(query_all(game.rules.terminal, fresh) == 0)
            chosen = random_plies(game.rules, fresh[rows], streams, game.num_actions, game.num_outcomes)
            step_rows(game.rules.step, fresh, rows, chosen)
            moves[missing[rows], ply] = chosen
        missing = missing[query_all(game.rules.terminal, fresh) != 0]
    return moves


def states_after(game: Game, moves: Actions) -> States:
    """The states ``[count, S]`` after these moves ``[count, plies]`` from the start."""
    states = game.initial_states(len(moves))
    for ply in range(moves.shape[1]):
        step_rows(game.rules.step, states, np.arange(len(moves)), np.ascontiguousarray(moves[:, ply]))
    return states


@compiled
def random_actions(legal_actions: Any, states: States, streams: Streams, num_actions: int) -> Actions:
    """A random legal action ``[N]`` for each of ``states`` ``[N, S]``, from stream 0."""
    out = np.empty(num_actions, np.int32)
    chosen = np.empty(len(states), np.int32)
    for i in range(len(states)):
        count = legal_actions(states[i], out)
        chosen[i] = out[below(streams, 0, count)]
    return chosen


@compiled
def random_plies(rules: Rules, states: States, streams: Streams, num_actions: int, num_outcomes: int) -> Actions:
    """A random legal action, or chance outcome, ``[N]`` for each of ``states`` ``[N, S]``, from stream 0."""
    legal_actions = rules.legal_actions
    out, chosen = np.empty(num_actions, np.int32), np.empty(len(states), np.int32)
    outcomes, chances = np.empty(num_outcomes, np.int32), np.empty(num_outcomes, np.float32)
    for i in range(len(states)):
        count = legal_actions(states[i], out)
        if count > 0:
            chosen[i] = out[below(streams, 0, count)]
        else:
            chosen[i] = draw_outcome(rules, states[i], outcomes, chances, streams, 0)
    return chosen


@compiled
def draw_outcomes(rules: Rules, states: States, streams: Streams, num_outcomes: int) -> Actions:
    """An outcome ``[N]`` for each of ``states`` ``[N, S]`` from its own stream; NO_OUTCOME if chance is not to move."""
    terminal, current_player = rules.terminal, rules.current_player
    outcomes, chances = np.empty(num_outcomes, np.int32), np.empty(num_outcomes, np.float32)
    drawn = np.full(len(states), NO_OUTCOME, np.int32)
    for i in range(len(states)):
        if terminal(states[i]) == 0 and current_player(states[i]) == CHANCE:
            drawn[i] = draw_outcome(rules, states[i], outcomes, chances, streams, i)
    return drawn


@compiled
def query_all(function: Any, states: States) -> NDArray[np.int64]:
    """The results of a query kernel for ``states`` ``[N, S]``."""
    answers = np.empty(len(states), np.int64)
    for i in range(len(states)):
        answers[i] = function(states[i])
    return answers


@compiled
def step_rows(step: Any, states: States, rows: NDArray[np.int64], actions: Actions) -> None:
    """Play ``actions`` ``[R]`` in ``states[rows]``, in place."""
    for i in range(len(rows)):
        step(states[rows[i]], np.int64(actions[i]))
