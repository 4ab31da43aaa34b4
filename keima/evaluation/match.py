"""Matches between two players from paired openings with swapped colours, all games of all matches in parallel.

In a game for P players a pair is P games instead of two: the first player has another seat in each, and the second has
all others.

Chance outcomes are moves like others. They depend on the match's seed and the number of the pair alone, not on how a
match is cut into slices, and all games of a pair draw from the same random numbers.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from keima.base.random import Streams, random_below, seed_stream
from keima.compilation.decorators import compiled
from keima.games.chance import sample_chance_outcome
from keima.games.game import CHANCE, Actions, Game, MoveScratch, Rules, States
from keima.search.move_search import Search

NO_OUTCOME = -1  # where chance is not to move
MOST_OPENINGS = 1000  # that are tried until one has not ended the game


class Player(Protocol):
    """Chooses moves."""

    def choose(self, states: States) -> Actions:
        """Return a legal action ``[N]`` for each of the non-terminal ``states`` ``[N, S]``."""


@runtime_checkable
class HistoryPlayer(Player, Protocol):
    """A player that needs the moves of each game so far."""

    def choose_with_history(self, states: States, starts: States, moves: Sequence[Sequence[int]]) -> Actions:
        """Choose as ``choose`` does, for ``states`` reached from ``starts`` ``[N, S]`` by these ``moves``."""


@runtime_checkable
class BatchingPlayer(Player, Protocol):
    """A player that searches many positions at once, and returns each move as soon as it is found."""

    def submit(self, numbers: Sequence[int], states: States) -> None:
        """Begin to search ``states`` ``[N, S]``; ``numbers`` ``[N]`` name them."""

    def advance(self) -> tuple[Sequence[int], Actions]:
        """Search for one network call; return the numbers ``[N]`` and actions ``[N]`` found by it."""


class SearchPlayer:
    """A network with search."""

    def __init__(self, search: Search) -> None:
        self._search = search

    def choose(self, states: States) -> Actions:
        """Return the best action that search finds."""
        return self._search.find(states).actions

    def submit(self, numbers: Sequence[int], states: States) -> None:
        """See ``BatchingPlayer``."""
        self._search.submit(numbers, states)

    def advance(self) -> tuple[Sequence[int], Actions]:
        """See ``BatchingPlayer``."""
        numbers, found = self._search.advance()
        return numbers.tolist(), found.actions


class RandomPlayer:
    """Plays uniformly random legal moves: the anchor of the ratings, at 0 Elo."""

    def __init__(self, game: Game, seed: int) -> None:
        self._game = game
        self._streams = np.array([seed_stream(seed, "random player")], np.uint64)

    def choose(self, states: States) -> Actions:
        """Return a uniformly random legal action."""
        return draw_random_actions(self._game.rules.legal_actions, states, self._streams, self._game.num_actions)


@dataclass(frozen=True, kw_only=True)
class MatchResult:
    """The games of a match from the first player's view, one per seat and pair."""

    # [pairs, players] 1 won, 0.5 drawn, 0 lost; with three and more players the return, brought from [-1, 1] to [0, 1].
    # The first player starts the first game of a pair.
    scores: NDArray[np.float64]
    moves: tuple[tuple[int, ...], ...] = ()  # of each game, after its opening

    @property
    def wins(self) -> int:
        """The number of games that the first player won."""
        return int((self.scores > 0.5).sum())

    @property
    def draws(self) -> int:
        """The number of drawn games."""
        return int((self.scores == 0.5).sum())

    @property
    def losses(self) -> int:
        """The number of games that the first player lost."""
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
    return play_match_from(
        game, make_opening_states(game, pairs, opening_plies, seed), first, second, seed=seed, poll=poll
    )


def play_match_from(
    game: Game,
    starts: States,
    first: Player,
    second: Player,
    *,
    seed: int = 0,
    first_pair: int = 0,
    opening_moves: Actions | None = None,
    poll: Callable[[], None] = lambda: None,
    on_round: Callable[[States], None] = lambda states: None,
) -> MatchResult:
    """Play a pair of games from each of ``starts`` ``[pairs, S]``; see ``play_match`` and ``Fixture``.

    Args:
        watch: called with the states of all games ``[pairs * players, S]`` before each round of moves.
    """
    session = MatchSession(game)
    session.begin(
        "",
        Fixture(
            first=first, second=second, starts=starts, seed=seed, first_pair=first_pair, opening_moves=opening_moves
        ),
    )
    while not (done := session.take_results()):
        poll()
        on_round(session.states(""))
        session.advance()
    return done[""]


@dataclass(frozen=True, kw_only=True)
class Fixture:
    """Pairs of games between two players.

    Args:
        starts: the state ``[pairs, S]`` that each pair begins with.
        seed: of the match's chance outcomes.
        first_pair: the number of the first of these pairs, where they are a slice of a match.
        opened: the moves ``[pairs, plies]`` that led to ``starts``, for players that need them.
    """

    first: Player
    second: Player
    starts: States
    seed: int = 0
    first_pair: int = 0
    opening_moves: Actions | None = None


class _MatchGames:
    """The games of a fixture, one per seat and pair."""

    def __init__(self, game: Game, fixture: Fixture) -> None:
        pairs, players = len(fixture.starts), game.num_players
        self.game, self.fixture = game, fixture
        self.states = np.repeat(fixture.starts, players, axis=0)
        self._seats = first_player_seats(game, pairs)
        self._streams = make_chance_streams(fixture.seed, first_pair=fixture.first_pair, pairs=pairs, players=players)
        opening_moves = np.empty((pairs, 0), np.int32) if fixture.opening_moves is None else fixture.opening_moves
        self._opening_plies = opening_moves.shape[1]
        self.starts = fixture.starts if fixture.opening_moves is None else game.initial_states(pairs)
        self.moves: list[list[int]] = np.repeat(opening_moves, players, axis=0).tolist()

    def play(self, rows: NDArray[np.int64], actions: Actions) -> None:
        """Play a move in each of the games ``rows`` ``[N]``."""
        step_states(self.game.rules.step, self.states, rows, actions)
        for row, action in zip(rows.tolist(), actions.tolist(), strict=True):
            self.moves[row].append(action)

    def players_to_move(self, rows: NDArray[np.int64]) -> list[tuple[int, Player]]:
        """Resolve chance events; return the player to move in each of the games ``rows`` that has not ended."""
        play_chance_outcomes(self.game, self.states, self._streams, self.moves)
        ended = query_states(self.game.rules.terminal, self.states[rows]) != 0
        is_first = query_states(self.game.rules.current_player, self.states[rows]) == self._seats[rows]
        players = self.fixture.first, self.fixture.second
        return [
            (row, players[0] if first else players[1])
            for row, over, first in zip(rows.tolist(), ended, is_first, strict=True)
            if not over
        ]

    def choose(self, player: Player, rows: NDArray[np.int64]) -> Actions:
        """Return the moves of a player that answers at once, in the games ``rows``."""
        starts = self.starts[rows // self.game.num_players]
        return choose_actions(player, self.states[rows], starts, [self.moves[row] for row in rows])

    def result(self) -> MatchResult | None:
        """Return the result, once all games have ended."""
        if not query_states(self.game.rules.terminal, self.states).all():
            return None
        moves = tuple(tuple(moves[self._opening_plies :]) for moves in self.moves)
        return MatchResult(scores=first_player_scores(self.game, self.states), moves=moves)


@dataclass(frozen=True)
class _PlayerToMove:
    """A player with the games in which it is to move: their tickets."""

    player: Player
    tickets: dict[int, None] = field(default_factory=dict)  # in the order in which they came


class MatchSession:
    """Matches in progress, named by the caller. A player's positions in all of them are evaluated in one batch."""

    def __init__(self, game: Game) -> None:
        self._game = game
        self._games: dict[str, _MatchGames] = {}
        self._movers: dict[int, _PlayerToMove] = {}  # by the player's identity
        self._tickets: dict[int, tuple[str, int]] = {}  # ticket -> match, number of the game
        self._num_tickets = 0  # tickets in all

    @property
    def names(self) -> list[str]:
        """The matches in progress."""
        return list(self._games)

    def states(self, name: str) -> States:
        """Return the states ``[pairs * players, S]`` of a match's games; not a copy."""
        return self._games[name].states

    def begin(self, name: str, fixture: Fixture) -> None:
        """Begin a match."""
        games = self._games[name] = _MatchGames(self._game, fixture)
        self._request_moves(name, np.arange(len(games.states)))

    def drop(self, name: str) -> None:
        """End a match without a result."""
        del self._games[name]
        dropped = {ticket for ticket, (match, _) in self._tickets.items() if match == name}
        for ticket in dropped:
            del self._tickets[ticket]
        for mover in self._movers.values():
            for ticket in dropped & mover.tickets.keys():
                del mover.tickets[ticket]
        self._forget_idle_players()

    def advance(self) -> None:
        """Let every player who is to move search for one network call, or move if it answers at once.

        Raises:
            ValueError: a network's answers are not finite, or have the wrong shape.
        """
        for mover in [mover for mover in self._movers.values() if mover.tickets]:
            if isinstance(mover.player, BatchingPlayer):
                tickets, actions = mover.player.advance()
                self._play_moves(tickets, actions)
            else:
                self._choose_at_once(mover)

    def take_results(self) -> dict[str, MatchResult]:
        """Return the results of the matches that have ended since the last call."""
        found = {}
        for name, games in list(self._games.items()):
            result = games.result()
            if result is not None:
                found[name] = result
                del self._games[name]
        if found:
            self._forget_idle_players()
        return found

    def _forget_idle_players(self) -> None:
        """Release players that have no moves to make, with their search memory; a player that moves again is
        readmitted.
        """
        self._movers = {key: mover for key, mover in self._movers.items() if mover.tickets}

    def _choose_at_once(self, mover: _PlayerToMove) -> None:
        for name, rows in self._group_by_match(mover.tickets).items():
            games = self._games[name]
            self._play_moves(list(rows), games.choose(mover.player, np.array(list(rows.values()))))

    def _play_moves(self, tickets: Sequence[int], actions: Actions) -> None:
        """Play the moves of games, and request the next ones; tickets of dropped matches are ignored."""
        chosen = dict(zip(tickets, actions.tolist(), strict=True))
        for name, rows in self._group_by_match(tickets).items():
            numbers = np.array(list(rows.values()))
            self._games[name].play(numbers, np.array([chosen[ticket] for ticket in rows], np.int32))
            for ticket in rows:
                del self._tickets[ticket]
                for mover in self._movers.values():
                    mover.tickets.pop(ticket, None)
            self._request_moves(name, numbers)

    def _group_by_match(self, tickets: Iterable[int]) -> dict[str, dict[int, int]]:
        """Return the tickets by match, each with the number of its game."""
        found: dict[str, dict[int, int]] = {}
        for ticket in tickets:
            if ticket in self._tickets:
                name, row = self._tickets[ticket]
                found.setdefault(name, {})[ticket] = row
        return found

    def _request_moves(self, name: str, rows: NDArray[np.int64]) -> None:
        """Ask the players to move in these games of a match, unless they have ended."""
        games = self._games[name]
        for row, player in games.players_to_move(rows):
            ticket = self._num_tickets
            self._num_tickets += 1
            self._tickets[ticket] = name, row
            self._movers.setdefault(id(player), _PlayerToMove(player)).tickets[ticket] = None
            if isinstance(player, BatchingPlayer):
                player.submit([ticket], games.states[row : row + 1])


def make_chance_streams(seed: int, *, first_pair: int, pairs: int, players: int) -> Streams:
    """Return the streams ``[pairs * players]`` of chance outcomes in these pairs of a match, the same for all games of
    one.
    """
    streams = [seed_stream(seed, "chance", number) for number in range(first_pair, first_pair + pairs)]
    return np.repeat(np.array(streams, np.uint64), players)


def play_chance_outcomes(game: Game, states: States, streams: Streams, moves: Sequence[list[int]]) -> None:
    """Play chance outcomes in ``states`` ``[N, S]`` until no chance event is left, and append them to ``moves``."""
    rows, scratch = np.arange(len(states) if game.num_outcomes else 0), game.make_move_scratch()
    while len(rows):
        drawn = sample_chance_outcomes(game.rules, states, streams, scratch)
        rows = np.flatnonzero(drawn != NO_OUTCOME)
        step_states(game.rules.step, states, rows, drawn[rows])
        for row in rows.tolist():
            moves[row].append(int(drawn[row]))


def choose_actions(player: Player, states: States, starts: States, moves: Sequence[Sequence[int]]) -> Actions:
    """Return the actions of a player in ``states``, which were reached from ``starts`` by ``moves``."""
    return (
        player.choose_with_history(states, starts, moves)
        if isinstance(player, HistoryPlayer)
        else player.choose(states)
    )


def first_player_seats(game: Game, pairs: int) -> NDArray[np.int64]:
    """Return the number of the first player's seat in each game ``[pairs * players]``."""
    return np.tile(np.arange(game.num_players), pairs)


def first_player_scores(game: Game, states: States) -> NDArray[np.float64]:
    """Return the scores ``[pairs, players]`` of the first player in games with these final ``states``."""
    pairs = len(states) // game.num_players
    returns = np.stack([game.returns(state) for state in states]).astype(np.float64)
    won = returns[np.arange(len(states)), first_player_seats(game, pairs)]
    # (return + 1) / 2: 1 for a win, 0.5 for a draw, 0 for a loss
    scores = np.sign(won) if game.num_players == 2 else won
    return ((scores + 1) / 2).reshape(pairs, game.num_players)


def count_wins_draws_losses(game: Game, states: States) -> tuple[int, int, int]:
    """Return the first player's wins, draws and losses so far in these games ``[pairs * players, S]``."""
    ended = query_states(game.rules.terminal, states).astype(np.bool_)
    so_far = MatchResult(scores=first_player_scores(game, states).ravel()[ended])
    return so_far.wins, so_far.draws, so_far.losses


def make_opening_states(game: Game, count: int, plies: int, seed: int) -> States:
    """Return ``count`` non-terminal states ``[count, S]`` after ``plies`` random moves or chance outcomes."""
    return play_opening_moves(game, draw_opening_moves(game, count, plies, seed))


def draw_opening_moves(game: Game, count: int, plies: int, seed: int) -> Actions:
    """Return the random moves ``[count, plies]`` that lead to ``make_opening_states``.

    There are fewer plies in a game that has ended by then whenever it was tried.
    """
    streams = np.array([seed_stream(seed, "openings")], np.uint64)
    moves = np.empty((count, plies), np.int32)
    missing, tried = np.arange(count), 0
    while len(missing):
        if len(missing) == count and tried >= MOST_OPENINGS:
            return draw_opening_moves(game, count, plies - 1, seed)
        tried += len(missing)
        fresh = game.initial_states(len(missing))
        for ply in range(plies):
            rows = np.flatnonzero(query_states(game.rules.terminal, fresh) == 0)
            chosen = draw_random_plies(game.rules, fresh[rows], streams, game.make_move_scratch())
            step_states(game.rules.step, fresh, rows, chosen)
            moves[missing[rows], ply] = chosen
        missing = missing[query_states(game.rules.terminal, fresh) != 0]
    return moves


def play_opening_moves(game: Game, moves: Actions) -> States:
    """Return the states ``[count, S]`` after these moves ``[count, plies]`` from the start."""
    states = game.initial_states(len(moves))
    for ply in range(moves.shape[1]):
        step_states(game.rules.step, states, np.arange(len(moves)), np.ascontiguousarray(moves[:, ply]))
    return states


@compiled
def draw_random_actions(legal_actions: Any, states: States, streams: Streams, num_actions: int) -> Actions:
    """Return a random legal action ``[N]`` for each of ``states`` ``[N, S]``, from stream 0."""
    out = np.empty(num_actions, np.int32)
    chosen = np.empty(len(states), np.int32)
    for i in range(len(states)):
        count = legal_actions(states[i], out)
        chosen[i] = out[random_below(streams, 0, count)]
    return chosen


@compiled
def draw_random_plies(rules: Rules, states: States, streams: Streams, scratch: MoveScratch) -> Actions:
    """Return a random legal action, or chance outcome, ``[N]`` for each of ``states`` ``[N, S]``, from stream 0."""
    legal_actions = rules.legal_actions
    out, chosen = scratch.actions, np.empty(len(states), np.int32)
    for i in range(len(states)):
        count = legal_actions(states[i], out)
        if count > 0:
            chosen[i] = out[random_below(streams, 0, count)]
        else:
            chosen[i] = sample_chance_outcome(rules, states[i], scratch, streams, 0)
    return chosen


@compiled
def sample_chance_outcomes(rules: Rules, states: States, streams: Streams, scratch: MoveScratch) -> Actions:
    """Return an outcome ``[N]`` for each of ``states`` ``[N, S]`` from its own stream; NO_OUTCOME if chance is not to
    move.
    """
    terminal, current_player = rules.terminal, rules.current_player
    drawn = np.full(len(states), NO_OUTCOME, np.int32)
    for i in range(len(states)):
        if terminal(states[i]) == 0 and current_player(states[i]) == CHANCE:
            drawn[i] = sample_chance_outcome(rules, states[i], scratch, streams, i)
    return drawn


@compiled
def query_states(function: Any, states: States) -> NDArray[np.int64]:
    """Return the results of a query kernel for ``states`` ``[N, S]``."""
    answers = np.empty(len(states), np.int64)
    for i in range(len(states)):
        answers[i] = function(states[i])
    return answers


@compiled
def step_states(step: Any, states: States, rows: NDArray[np.int64], actions: Actions) -> None:
    """Play ``actions`` ``[R]`` in ``states[rows]``, in place."""
    for i in range(len(rows)):
        step(states[rows[i]], np.int64(actions[i]))
