"""A network learns the values of every player in a game for three."""

import numpy as np
import pytest
import torch

import keima
from keima.games.game import Game
from tests.games.last_stone import solved
from tests.own_game import last_stone

STONES = 9
SEARCH = keima.SearchSettings(num_simulations=24, full_search_probability=1.0, opening_random_moves=2)


def play(game: Game, evaluator: keima.Evaluator, games: int, seed: int) -> list[keima.GameRecord]:
    """Return games of self-play."""
    self_play = keima.SelfPlay(game, evaluator, SEARCH, parallel_games=games)
    self_play.begin(range(seed, seed + games))
    records: list[keima.GameRecord] = []
    while self_play.num_playing:
        records += self_play.advance()
    return records


@pytest.mark.slow
@pytest.mark.trial
def test_self_play_of_three_players_learns_the_values_of_a_solved_game() -> None:
    torch.manual_seed(1)
    game = last_stone(STONES)
    network = keima.build_network(game, blocks=1, channels=16, global_pooling=False)
    learner = keima.Learner(network, device="cpu", batch_size=64, learning_rate=5e-3, warmup_steps=10, ema_decay=0.9)
    window = keima.ReplayWindow(game, capacity_positions=5_000)
    for iteration in range(1, 9):
        evaluator = keima.Evaluator(learner.average.network, game, device="cpu")
        window.add(keima.batch_of(game, play(game, evaluator, 100, 100 * iteration)))
        learner.train(window, 40, seed=iteration)
    evaluator, state = keima.Evaluator(learner.average.network, game, device="cpu"), game.initial_state()
    while not game.terminal(state):
        left = int(game.observe(state).sum())
        logits, values = evaluator(game.observe(state)[None])
        assert values[0] == pytest.approx(solved(left), abs=0.5)
        action = int(np.argmax(np.where(np.isin([0, 1], game.legal_actions(state)), logits[0], -np.inf)))
        assert solved(left - action - 1)[-1] == solved(left)[0]
        game.play(state, 0)
