"""Whether a network learns by heart: how well it does on the newest positions, which it has not learned from yet,
beside older ones.

The loss falls when a network learns how to judge positions, and also when it merely remembers its window's. A network
that is far better where it has learned wants more games or a longer window (``training.window``), not more steps of the
same.
"""

import numpy as np
import torch

from training.common.random import seed_stream
from training.common.reports import GeneralizationReport
from training.learning.learner import Learner, TensorBatch, log_policies, to_tensors
from training.networks.auxiliary_heads import outputs_to_learn
from training.networks.policy_value import network_of
from training.replay.replay import ReplayWindow

COUNT = 512  # positions that are looked at, of the newest and of others
LEAST_VARIANCE = 1e-6  # of the values: where all are alike there is nothing to explain


def generalization(
    learner: Learner, window: ReplayWindow, seed: int, *, count: int = COUNT
) -> GeneralizationReport | None:
    """How the averaged network of ``learner`` does on new positions and on learned ones; None while the window has few.

    The new ones are the newest of the window, so this is to be asked when games have come in, before the next step.
    Those it has learned from are drawn from the third quarter of the window: played not much earlier, by networks
    nearly as good.
    """
    places = window.to_learn_from()
    if learner.step == 0 or len(places) < 8 * count:
        return None
    learned = places[len(places) // 2 : 3 * len(places) // 4]
    chosen = np.random.default_rng(seed_stream(seed, "generalization", learner.step)).choice(
        learned, count, replace=False
    )
    as_played = np.zeros(count, np.int64)  # the symmetries
    policy_new, value_new = _shortfall(learner, to_tensors(window.take(places[-count:], as_played), learner.device))
    policy_learned, value_learned = _shortfall(learner, to_tensors(window.take(chosen, as_played), learner.device))
    return GeneralizationReport(
        policy_new=policy_new, policy_learned=policy_learned, value_new=value_new, value_learned=value_learned
    )


@torch.no_grad()
def _shortfall(learner: Learner, batch: TensorBatch) -> tuple[float, float]:
    """How far the network's policy is from the targets, in nats, and the share of their values' variance that it does
    not explain.
    """
    network = learner.average.network
    with learner.update_step.autocast:
        logits, value_logits, _ = outputs_to_learn(network, batch.observations)
    log_policy = log_policies(logits, batch.legal)
    divergence = (torch.xlogy(batch.policies, batch.policies) - batch.policies * log_policy).sum(1) * batch.policy_mask
    errors = (network_of(network).value.values(value_logits).float() - batch.values).square().mean()
    return (
        float(divergence.sum() / batch.policy_mask.sum().clamp(min=1)),
        float(errors / batch.values.var(correction=0).clamp(min=LEAST_VARIANCE)),
    )
