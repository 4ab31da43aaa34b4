"""What a network foresees of the end of a game whose last board is counted: whose each point will be, and who will be
ahead by how much.

Only networks that have learned it beside their moves do (``training.networks.auxiliary_heads.predictions_of``). It is
for people to look at, and search never sees it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from games.game import Planes


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """Of N positions, each as its player to move sees it; None: the network has not learned that."""

    ownership: NDArray[np.float32] | None  # [N, H * W] from 1, surely the mover's, to -1, surely the opponent's
    leads: NDArray[np.float32] | None  # [N] by how many points the mover will win


Predict = Callable[[Planes], Predictions]  # of observations [N, C, H, W]
