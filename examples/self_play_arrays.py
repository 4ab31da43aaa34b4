"""Self-play to numpy arrays: games of Go by a network, as observations, policies and results for any learner.

The same arrays come from a run's files: ``for game in keima.read_games("runs/go9"): game.observations()``.
"""

import sys

import numpy as np

import keima

SEARCH = keima.SearchSettings(num_simulations=16, full_search_probability=1.0)


def main(games: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Play, and return observations ``[N, C, H, W]``, policies ``[N, A]`` and values ``[N]`` for the player to move."""
    network = keima.load_network("go7")
    self_play = keima.SelfPlay(network.game, network.evaluate, SEARCH, parallel_games=games)
    self_play.begin(range(games))
    records: list[keima.GameRecord] = []
    while self_play.num_playing:
        records += self_play.advance()
    observations, policies, values = [], [], []
    for number, record in enumerate(records, 1):
        game = keima.RecordedGame(game=network.game, number=number, worker="here", record=record)
        observations.append(game.observations())
        policies.append(game.policies())
        values.append(game.returns[np.arange(len(game.actions)) % 2])
    arrays = np.concatenate(observations), np.concatenate(policies), np.concatenate(values)
    print(f"{games} games, {len(arrays[0]):,} positions:", *(f"{array.dtype}{list(array.shape)}" for array in arrays))
    return arrays


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
