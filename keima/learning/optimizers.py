"""The optimizers of the learner, built from the section ``training`` of the settings."""

from typing import Any

import torch
from torch import nn

from keima.config.sections.training import TrainingSettings
from keima.learning.muon import Muon, hidden_matrices
from keima.learning.plain_optimizers import SGD, AdamW


def build_optimizer(network: nn.Module, settings: TrainingSettings, *, sharded: bool = False) -> torch.optim.Optimizer:
    """Build AdamW (arXiv 1711.05101), Muon or SGD with momentum; only matrices and kernels get weight decay.

    Args:
        network: its parameters are optimized.
        settings: ``optimizer``, ``momentum`` and ``weight_decay``. The learner sets the learning rate at each step.
        sharded: whether each rank holds only its part of the optimizer's state.
    """
    kinds: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
        "adamw": (AdamW, {}),
        "muon": (Muon, {}),
        "sgd": (SGD, {"momentum": settings.momentum}),
    }
    build, options = kinds[settings.optimizer]
    hidden = hidden_matrices(network) if build is Muon else []
    taken = set(hidden)
    others = [p for p in network.parameters() if p not in taken]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in others if p.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in others if p.ndim <= 1], "weight_decay": 0.0},
    ]
    if hidden:
        groups.append({"params": hidden, "weight_decay": settings.weight_decay, "orthogonal": True})
    if sharded:
        from torch.distributed.optim import ZeroRedundancyOptimizer  # imported here, because it takes seconds

        return ZeroRedundancyOptimizer(groups, build, lr=0.0, fused=True, **options)
    return build(groups, lr=0.0, fused=True, **options)  # type: ignore[call-arg]  # all of them accept these
