"""A network's predictions of ownership and score lead at the end of a game.

Only networks with auxiliary heads make them (``keima.networks.architectures.auxiliary_heads.make_predictor``). They are
for people; of all predictions, search uses only the score lead of its leaves (``add_score_to_value`` in the same file).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from keima.games.game import Planes


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """Predictions for N positions, each from the view of its player to move; None: the network has no such head."""

    ownership: NDArray[np.float32] | None  # [N, H * W] from 1, the mover's, to -1, the opponent's
    score_leads: NDArray[np.float32] | None  # [N] the mover's lead in points


Predict = Callable[[Planes], Predictions]  # of observations [N, C, H, W]
