"""Auxiliary heads: training them improves the tower. Search uses only one of their outputs in play, the score
(``add_score_to_value``).

Sources: KataGo (arXiv 1902.10565, sections 4.1 and 4.2): the opponent's reply with a weight of 0.15, each point's owner
at the end of the game with 1.5 (training.ownership_weight), and the final score, here as one number with a robust loss.
Later versions of KataGo also predict future boards; here one, training.future_plies later (training.future_weight).
"""

import copy
import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from keima.config.sections.training import TrainingSettings
from keima.games.game import Game, Planes
from keima.networks.architectures.layers import HEAD_CHANNELS, PolicyHead
from keima.networks.predictions import Predict, Predictions
from keima.networks.value_heads import ValueHead, initialize_near_zero

REPLY_WEIGHT, SCORE_WEIGHT = 0.15, 0.25
SCORE_HIDDEN = 64
SCORE_SCALE = 20.0  # points per unit, as for komi in the observations of Go


class AuxiliaryHeads(nn.Module):
    """Any of four heads over the tower's output and the pooled board.

    Args:
        channels: of the tower.
        board: H, W.
        reply: whether to predict the opponent's policy in the next position.
        ownership: the planes that predict each point's owner: 1, whether it is the mover's; 2, whether it is the
            mover's and whether it is the opponent's, for games in which points stay empty; 0: none.
        score: whether to predict the score lead of the player to move.
        future: whether to predict where the pieces of both players will stand some plies later.
        policy: the number of actions, the policy planes and global pooling, as for ``PolicyHead``.
    """

    def __init__(
        self,
        *,
        channels: int,
        board: tuple[int, int],
        reply: bool,
        ownership: int,
        score: bool,
        future: bool,
        policy: tuple[int, int, bool],
    ) -> None:
        super().__init__()
        self.reply = PolicyHead(channels, board[0] * board[1], *policy) if reply else None
        self.ownership = nn.Conv2d(channels, ownership, 1) if ownership else None
        self.score = (
            nn.Sequential(nn.Linear(3 * HEAD_CHANNELS, SCORE_HIDDEN), nn.ReLU(), nn.Linear(SCORE_HIDDEN, 1))
            if score
            else None
        )
        if self.score:
            last = self.score[-1]
            assert isinstance(last, nn.Linear)
            initialize_near_zero(last)
        self.future = nn.Conv2d(channels, 2, 1) if future else None

    def forward(self, x: Tensor, pooled: Tensor) -> dict[str, Tensor]:
        """Map ``[N, channels, H, W]`` and the pooled board to the output of each head.

        Reply: logits ``[N, A]``. Ownership: logits ``[N, planes * H * W]``. Score: ``[N]``, in ``SCORE_SCALE``. Future:
        logits ``[N, 2 * H * W]``, of the mover's pieces and the opponent's.
        """
        outputs = dict[str, Tensor]()
        if self.reply:
            outputs["reply"] = self.reply(x, pooled)
        if self.ownership:
            outputs["ownership"] = self.ownership(x).flatten(1)
        if self.score:
            outputs["score"] = self.score(pooled).squeeze(1)
        if self.future:
            outputs["future"] = self.future(x).flatten(1)
        return outputs


def forward_for_training(network: Any, observations: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Return policy logits, value logits, and the outputs of the auxiliary heads, if the network has any."""
    heads = getattr(network, "auxiliary", None)
    if heads is None:
        return *network(observations), {}
    x, pooled = network.features(observations)
    return network.policy(x, pooled), network.value(pooled), heads(x, pooled)


def make_predictor(network: nn.Module) -> Predict | None:
    """Return the predictor of game ends of a network, which is put into evaluation mode; None if it has no such heads.

    It is meant for few positions: it runs the whole network in plain torch, on its device.
    """
    heads = network.eval().auxiliary if hasattr(network, "auxiliary") else None
    if not isinstance(heads, AuxiliaryHeads) or not (heads.ownership or heads.score):
        return None

    def predict(observations: Planes) -> Predictions:
        with torch.inference_mode():
            outputs = heads(*network.features(torch.from_numpy(observations)))  # type: ignore[operator]
        ownership, score = outputs.get("ownership"), outputs.get("score")
        return Predictions(
            ownership=None
            if ownership is None
            else _to_numpy(decode_ownership(ownership, math.prod(observations.shape[2:]))),
            score_leads=None if score is None else _to_numpy(SCORE_SCALE * score),
        )

    return predict


class ScoringHead(ValueHead):
    """A value head, and beside it the score head over the same pooled board."""

    def __init__(self, value: ValueHead, score: nn.Module) -> None:
        super().__init__()
        self.value, self.score = value, score

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[N, inputs]`` to the value logit and the score in ``SCORE_SCALE``, ``[N, 2]``."""
        return torch.stack([self.value(x), self.score(x).squeeze(1)], 1)

    def values(self, logits: Tensor) -> Tensor:
        """Map ``[N, 2]`` to the value, and the lead of the player to move in points."""
        return torch.stack([self.value.values(logits[:, 0]), SCORE_SCALE * logits[:, 1]], 1)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of the value, of ``targets`` ``[N, 2]``; the score has a loss of its own in training."""
        return self.value.loss(logits[:, 0], targets[:, 0])


def add_score_to_value(network: nn.Module, game: Game, score_utility: float) -> tuple[nn.Module, float]:
    """Return the network for a search in which points count up to ``score_utility``, and the most they can count.

    For a game won by area and a network that predicts the score, it is a copy whose values are ``[N, 2]``: value and
    lead. Otherwise it is the network unchanged, and 0.
    """
    heads = getattr(network, "auxiliary", None)
    if score_utility == 0 or not game.won_by_area or not isinstance(heads, AuxiliaryHeads) or heads.score is None:
        return network, 0.0
    network = copy.deepcopy(network)
    network.value = ScoringHead(network.value, network.auxiliary.score)  # type: ignore[arg-type, union-attr]
    return network, score_utility


def decode_ownership(logits: Tensor, points: int) -> Tensor:
    """Map ownership logits ``[N, points]`` or ``[N, 2 * points]`` to ``[N, points]``: 1 surely the mover's, -1 surely
    the opponent's.
    """
    mine, *theirs = torch.sigmoid(logits).split(points, 1)
    return mine - (theirs[0] if theirs else 1 - mine)


def _to_numpy(tensor: Tensor) -> NDArray[np.float32]:
    return tensor.float().numpy()


def auxiliary_losses(
    outputs: dict[str, Tensor],
    *,
    replies: Tensor,
    ownership: Tensor,
    score_leads: Tensor,
    futures: Tensor,
    settings: TrainingSettings,
) -> dict[str, Tensor]:
    """Return the weighted losses of the heads' outputs, means over all N positions; positions without a target count as
    0.

    Args:
        outputs: the output of each head.
        replies: ``[N, A]``, a policy, or zero where there was no reply.
        ownership: ``[N, H * W]``, 1 where a point becomes the mover's, -1 where it becomes the opponent's, else 0.
        score_leads: ``[N]``, the mover's lead in points; NaN where the game was not played out, so that neither it nor
            the ownership is known.
        futures: ``[N, 2 * H * W]``, 1 where a piece of the mover will stand, then where one of the opponent's will.
        settings: with the weights of the losses.
    """
    losses = dict[str, Tensor]()
    known = torch.isfinite(score_leads)
    if "reply" in outputs:
        log_policy = functional.log_softmax(outputs["reply"].float(), 1)
        losses["reply_loss"] = -REPLY_WEIGHT * (replies * log_policy).sum(1).mean()
    if "ownership" in outputs:
        one_plane = outputs["ownership"].shape == ownership.shape
        targets = (1 + ownership) / 2 if one_plane else torch.cat([ownership > 0, ownership < 0], 1).float()
        each = functional.binary_cross_entropy_with_logits(
            outputs["ownership"].float(), targets, reduction="none"
        ).mean(1)
        losses["ownership_loss"] = settings.ownership_weight * (each * known).mean()
    if "score" in outputs:
        targets = torch.where(known, score_leads, 0.0) / SCORE_SCALE
        each = functional.smooth_l1_loss(outputs["score"].float(), targets, reduction="none")
        losses["score_loss"] = SCORE_WEIGHT * (each * known).mean()
    if "future" in outputs:
        loss = functional.binary_cross_entropy_with_logits(outputs["future"].float(), futures)
        losses["future_loss"] = settings.future_weight * loss
    return losses
