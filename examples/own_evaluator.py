"""Search with an evaluator of one's own: any function of a batch of observations, here one that knows nothing.

The search asks for many positions at once, one for each tree, so a network or another program answers in batches.
"""

import numpy as np

import keima

TREES, SIMULATIONS = 8, 400


def main() -> None:
    """Search the first positions of Connect Four side by side, and print the best moves."""
    game, asked = keima.load_game("connect_four"), list[int]()

    def evaluate(observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Observations ``[N, C, H, W]`` to policy logits ``[N, A]`` and values ``[N]`` for the player to move."""
        asked.append(len(observations))
        return np.zeros((len(observations), game.num_actions), np.float32), np.zeros(len(observations), np.float32)

    states = game.initial_states(game.num_actions)  # [B, S]: one after each first move
    for state, action in zip(states, range(game.num_actions), strict=True):
        game.play(state, action)
    search = keima.Search(game, evaluate, keima.SearchSettings(), num_simulations=SIMULATIONS, num_trees=TREES)
    found = search.find(states)
    for action in range(game.num_actions):
        answer = game.action_name(int(found.actions[action]))
        print(f"after {game.action_name(action)}: {answer}, value {found.values[action]:+.2f}")
    print(f"{sum(asked):,} positions were evaluated in {len(asked):,} batches")


if __name__ == "__main__":
    main()
