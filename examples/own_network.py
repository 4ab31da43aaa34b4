"""A network of one's own: a file with ``network(game)``. It trains here for an iteration.

In a config: ``network: {module: own_network.py, options: {width: 64}}``.
"""

import torch
from torch import nn

import keima


class Perceptron(keima.OwnNetwork):
    """Two hidden layers over the whole board."""

    def __init__(self, game, width):
        super().__init__()
        points = game.observation_shape[0] * game.height * game.width
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(points, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.policy = nn.Linear(width, game.num_actions)
        self.value = keima.make_value_head(width, game.max_return if game.num_players == 1 else None, game.num_values)

    def forward(self, observations):
        """Observations ``[N, C, H, W]`` to policy logits ``[N, A]`` and value logits."""
        hidden = self.body(observations)
        return self.policy(hidden), self.value(hidden)


def network(game, width=64):
    """The network, as Keima wants it."""
    return Perceptron(game, width)


if __name__ == "__main__":
    made = network(keima.load_game("tic_tac_toe"))
    print(f"{sum(tensor.numel() for tensor in made.parameters()):,} numbers, {torch.__version__=}")
    network = {"module": __file__, "options": {"width": 32}}
    own = {"network": network, "run.iterations": 1, "evaluation.every": 0}
    report = keima.train("tic_tac_toe", run_dir="runs/own-network", overrides=own)
    print(f"{report.total_games:,} games are in runs/own-network")
