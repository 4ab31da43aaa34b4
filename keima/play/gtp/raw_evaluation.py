"""What the network alone says of a position, as kata-raw-nn prints it (KataGo's GTP_Extensions.md)."""

import numpy as np
from numpy.typing import NDArray

from keima.games.game import Game, States
from keima.networks.predictions import Predict
from keima.play.gtp.syntax import GtpError
from keima.search.puct import Evaluate


def parse_symmetries(game: Game, word: str) -> list[int]:
    """Return the symmetries that a word names: a number from 0, or all.

    Raises:
        GtpError: it is neither.
    """
    count = len(game.point_symmetries)
    if word == "all":
        return list(range(count))
    if word not in map(str, range(count)):
        raise GtpError(f"syntax error: {word!r} is not a symmetry from 0 to {count - 1}, or all")
    return [int(word)]


def format_raw_evaluation(game: Game, state: States, symmetry: int, evaluate: Evaluate, predict: Predict | None) -> str:
    """Return the network's evaluation of a position of Go that it sees under a symmetry, as lines of names and numbers.

    The policy is of the player to move; the other numbers are White's.
    """
    points, sign = game.point_symmetries[symmetry], 1 if game.current_player(state) == 1 else -1
    seen = game.observe(state)
    seen = seen.reshape(len(seen), -1)[:, points].reshape(1, *seen.shape)
    logits, values = evaluate(seen)
    win = (1 + sign * float(values.flat[0])) / 2
    lines = [f"symmetry {symmetry}", f"whiteWin {win:.6f}", f"whiteLoss {1 - win:.6f}", "noResult 0.000000"]
    found = predict(seen) if predict else None
    if found is not None and found.score_leads is not None:
        lines.append(f"whiteLead {sign * found.score_leads[0]:.3f}")
    policy = _legal_policy(game, state, logits[0][game.action_symmetries[symmetry]])
    lines += ["policy", *_format_rows(game, policy[:-1]), f"policyPass {policy[-1]:.6f}"]
    if found is not None and found.ownership is not None:
        ownership = np.empty(len(points))
        ownership[points] = sign * found.ownership[0]
        lines += ["whiteOwnership", *_format_rows(game, ownership)]
    return "\n".join(lines)


def _legal_policy(game: Game, state: States, logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the policy ``[A]`` over the legal moves; the others are NaN."""
    policy, legal = np.full(game.num_actions, np.nan), game.legal_actions(state)
    shares = np.exp(logits[legal].astype(np.float64) - logits[legal].max())
    policy[legal] = shares / shares.sum()
    return policy


def _format_rows(game: Game, values: NDArray[np.float64]) -> list[str]:
    """Return the numbers of all points, a line for each row of the board from above."""
    return [" ".join(f"{value:.6f}" for value in row) for row in values.reshape(-1, game.width)]
