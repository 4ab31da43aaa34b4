"""Measure overfitting: the network's error on the newest positions, before it learns from them, against older ones.

The loss falls when a network learns to judge positions, and also when it merely memorizes the window's. A network that
is far better on positions that it has learned from needs more games or a longer window (``training.window``), not more
steps.
"""

import numpy as np
import torch

from keima.base.random import seed_stream
from keima.base.reports.run_reports import GeneralizationReport
from keima.learning.learner import Learner, TensorBatch, copy_to_device
from keima.networks.architectures.auxiliary_heads import forward_for_training
from keima.networks.architectures.layers import masked_log_policies
from keima.networks.policy_value import as_policy_value_network
from keima.replay.window import ReplayWindow

EVALUATED_POSITIONS = 512  # positions of each kind that are evaluated
LEAST_VARIANCE = 1e-6  # of the values: avoids dividing by zero when all are equal


def measure_generalization(
    learner: Learner, window: ReplayWindow, seed: int, *, count: int = EVALUATED_POSITIONS
) -> GeneralizationReport | None:
    """Return the averaged network's errors on new and on learned positions; None while the window has too few.

    The new positions are the newest of the window, so call this after games have arrived and before the next step.
    Learned positions are drawn from the third quarter of the window: played not much earlier, by networks nearly as
    good.
    """
    places = window.to_learn_from()
    if learner.step == 0 or len(places) < 8 * count:
        return None
    learned = places[len(places) // 2 : 3 * len(places) // 4]
    chosen = np.random.default_rng(seed_stream(seed, "generalization", learner.step)).choice(
        learned, count, replace=False
    )
    as_played = np.zeros(count, np.int64)  # the symmetries
    policy_new, value_new = _policy_and_value_errors(
        learner, copy_to_device(window.take(places[-count:], as_played), learner.device)
    )
    policy_learned, value_learned = _policy_and_value_errors(
        learner, copy_to_device(window.take(chosen, as_played), learner.device)
    )
    return GeneralizationReport(
        policy_new=policy_new, policy_learned=policy_learned, value_new=value_new, value_learned=value_learned
    )


@torch.no_grad()
def _policy_and_value_errors(learner: Learner, batch: TensorBatch) -> tuple[float, float]:
    """Return the divergence of the network's policy from the targets, in nats, and the share of the values' variance
    that it does not explain.
    """
    network = learner.average.network
    with learner.update_step.autocast:
        logits, value_logits, _ = forward_for_training(network, batch.observations)
    log_policy = masked_log_policies(logits, batch.legal)
    divergence = (torch.xlogy(batch.policies, batch.policies) - batch.policies * log_policy).sum(1) * batch.policy_mask
    errors = (as_policy_value_network(network).value.values(value_logits).float() - batch.values).square().mean()
    return (
        float(divergence.sum() / batch.policy_mask.sum().clamp(min=1)),
        float(errors / batch.values.var(correction=0).clamp(min=LEAST_VARIANCE)),
    )
