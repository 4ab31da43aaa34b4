"""A training loop of one's own, in one process: a network learns tic-tac-toe from its own games, in half a minute.

Play games with the newest network, keep them in a window, train on positions sampled from it, repeat. `keima train`
does the same with worker processes, a ledger, checkpoints and evaluations.
"""

import sys

import torch

import keima

GAMES, STEPS = 200, 60  # an iteration
SEARCH = keima.SearchSettings(num_simulations=32, full_search_probability=1.0, opening_random_moves=1)


def main(iterations: int = 12) -> float:
    """Train, and return the score of the network's player in 100 games against a random one."""
    torch.manual_seed(1)
    game = keima.load_game("tic_tac_toe")
    network = keima.build_network(game, blocks=2, channels=16, global_pooling=False)
    learner = keima.Learner(network, device="cpu", batch_size=128, learning_rate=5e-3, warmup_steps=20, ema_decay=0.98)
    window = keima.ReplayWindow(game, capacity_positions=20_000)
    for iteration in range(1, iterations + 1):
        evaluator = keima.Evaluator(learner.average.network, game, device="cpu")
        self_play = keima.SelfPlay(game, evaluator, SEARCH, parallel_games=GAMES)
        self_play.begin(range(iteration * GAMES, (iteration + 1) * GAMES))
        while self_play.num_playing:
            if records := self_play.advance():
                window.add(keima.batch_of(game, records))
        loss = learner.train(window, STEPS, seed=iteration).loss
        search = keima.Search(game, evaluator, SEARCH, num_simulations=8, num_trees=16)
        player, opponent = keima.SearchPlayer(search), keima.RandomPlayer(game, seed=1)
        score = float(keima.play_match(game, player, opponent, pairs=50, opening_plies=2, seed=1).scores.mean())
        print(f"iteration {iteration}: {iteration * GAMES:,} games, loss {loss:.3f}, {score:.0%} against random moves")
    return score


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
