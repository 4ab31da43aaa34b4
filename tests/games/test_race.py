"""The small backgammon of games/race.py against rules that are written in another way, and exact expectimax on them."""

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

from keima.games.game import CHANCE, Game, States
from keima.search.baselines.uct import UctPlayer
from tests.own_game import example

POINTS, STONES, SIDES = 5, 2, 3
HAND, HOME = 0, POINTS + 1  # where a stone may be beside the points, which each side numbers as it goes
Side = tuple[int, ...]  # where its stones are, in ascending order
ROUNDS = 80  # of value iteration, until no value changes


def list_moves(mine: Side, theirs: Side, die: int) -> Iterator[tuple[int, Side, Side]]:
    """Yield where a stone may begin, and both sides after it has moved."""
    for stone in sorted(set(mine) - {HOME}):
        to = min(stone + die, HOME)
        opposite = POINTS + 1 - to
        if to < HOME and theirs.count(opposite) > 1:
            continue
        rest = list(mine)
        rest[rest.index(stone)] = to
        others = [HAND if at == opposite and to < HOME else at for at in theirs]
        yield stone, tuple(sorted(rest)), tuple(sorted(others))


@cache
def solve() -> dict[tuple[Side, Side], float]:
    """Return the probability to win of the side that is about to roll, by expectimax until it no longer changes."""
    sides = [(a, b) for a in range(HOME + 1) for b in range(a, HOME + 1)]
    wins = {(mine, theirs): 0.5 for mine in sides for theirs in sides}
    for _ in range(ROUNDS):
        wins = {at: sum(win_by_best_move(wins, *at, die) for die in range(1, SIDES + 1)) / SIDES for at in wins}
    return wins


def win_by_best_move(wins: dict[tuple[Side, Side], float], mine: Side, theirs: Side, die: int) -> float:
    """Return the probability to win once the die shows a number."""
    if HOME * STONES in (sum(mine), sum(theirs)):
        return float(sum(mine) == HOME * STONES)
    chances = [1 - wins[others, rest] for _, rest, others in list_moves(mine, theirs, die)]
    return max(chances, default=1 - wins[theirs, mine])


def move_of(stone: int, player: int) -> int:
    """Return the number of the move of a stone."""
    return POINTS if stone == HAND else stone - 1 if player == 0 else POINTS - stone


def play_through(game: Game, seed: int) -> Iterator[tuple[States, dict[int, float]]]:
    """Play a random game by both rules; yield each position where a player is to move, and what each move wins."""
    random, wins, state = np.random.default_rng(seed), solve(), game.initial_state()
    sides, player = [(HAND,) * STONES] * 2, 0
    while not game.terminal(state):
        assert game.current_player(state) == CHANCE
        outcomes, probabilities = game.chance_outcomes(state)
        assert probabilities == pytest.approx([1 / SIDES] * SIDES)
        game.play(state, outcome := int(random.choice(outcomes)))
        found = list(list_moves(sides[player], sides[1 - player], outcome + 1))
        if found:
            moves = {move_of(stone, player): (mine, theirs) for stone, mine, theirs in found}
            assert game.current_player(state) == player and game.legal_actions(state).tolist() == sorted(moves)
            yield state, {move: 1 - wins[theirs, mine] for move, (mine, theirs) in moves.items()}
            game.play(state, move := int(random.choice(list(moves))))
            sides[player], sides[1 - player] = moves[move]
        player = 1 - player
    winner = 1 if game.returns(state)[0] > 0 else -1
    assert [set(side) == {HOME} for side in sides] == [winner > 0, winner < 0]


@pytest.mark.medium
def test_it_has_the_rules_and_search_finds_the_moves_of_exact_expectimax() -> None:
    game = example("race", points=POINTS, stones=STONES, sides=SIDES)
    player, lost = UctPlayer(game, playouts=1000, seed=1), list[float]()
    for seed in range(12):
        for state, wins in play_through(game, seed):
            if len(wins) > 1:
                lost.append(max(wins.values()) - wins[int(player.choose(state[None])[0])])
    assert len(lost) > 40 and max(lost) < 0.1 and np.mean(lost) < 0.01
    assert solve()[(HAND,) * STONES, (HAND,) * STONES] > 0.5, "who begins is ahead"
