"""The whole loop in one file: a network learns tic-tac-toe from its own games, in half a minute on one core.

    python examples/minimal.py

Play games with the newest network, keep them in a window, train on positions sampled from it, repeat. `keima train`
does the same with worker processes, a ledger, checkpoints and evaluations (docs/tour.md).
"""

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

import keima
from keima.evaluation.perfect_play import errors, load_positions, policy_actions

ITERATIONS, GAMES, STEPS = 12, 200, 60
SEARCH = keima.SearchSettings(num_simulations=32, full_search_probability=1.0, opening_random_moves=1)


def play(game: keima.Game, evaluator: keima.Evaluator, seeds: Sequence[int]) -> list[keima.GameRecord]:
    """One game of self-play per seed, all in parallel."""
    self_play = keima.SelfPlay(game, evaluator, SEARCH, parallel_games=len(seeds))
    self_play.begin(seeds)
    records: list[keima.GameRecord] = []
    while self_play.num_playing:
        records += self_play.advance()
    return records


def main(iterations: int = ITERATIONS) -> float:
    """Train, and return the share of positions in which the network's first choice throws away a win or a draw."""
    torch.manual_seed(1)
    torch.set_num_threads(1)
    game = keima.load_game("tic_tac_toe")
    positions = load_positions(game)  # all positions with their exact values: for measuring, not for training
    assert positions is not None
    network = keima.build_network(game, blocks=2, channels=16, global_pooling=False)
    learner = keima.Learner(network, device="cpu", batch_size=128, learning_rate=5e-3, warmup_steps=20, ema_decay=0.98)
    window = keima.ReplayWindow(game, capacity_positions=20_000)
    for iteration in range(1, iterations + 1):
        evaluator = keima.Evaluator(learner.average.network, game, device="cpu")
        records = play(game, evaluator, range(iteration * GAMES, (iteration + 1) * GAMES))
        window.add(keima.batch_of(game, records))
        report = learner.train(window, STEPS, seed=iteration)
        share = errors(
            positions, policy_actions(positions, keima.Evaluator(learner.average.network, game, device="cpu"))
        ).share
        print(
            f"iteration {iteration}: {iteration * GAMES:,} games, loss {report.loss:.3f}, mistakes without "
            f"search {share:.1%}"
        )
    print("It has learned tic-tac-toe." if share < 0.03 else "It has not learned it yet: give it more iterations.")
    return share


if __name__ == "__main__":
    main()
