"""PyTorch's optimizers without its compiler, whose import takes seconds.

Their methods import it for nothing but to tell it to leave them as they are, and here it compiles nothing. Without it,
a run takes its first step, and a process that continues it, that much sooner.
"""

from inspect import unwrap
from typing import Any

import torch
from torch.optim import Optimizer


class WithoutCompiler:
    """The methods of all optimizers that would import it, as they are below PyTorch's decorators."""

    add_param_group = unwrap(Optimizer.add_param_group)
    zero_grad = unwrap(Optimizer.zero_grad)
    state_dict = unwrap(Optimizer.state_dict)
    load_state_dict = unwrap(Optimizer.load_state_dict)


class Adam(WithoutCompiler, torch.optim.Adam):
    """Adam (arXiv 1412.6980)."""

    step: Any = torch.no_grad()(unwrap(torch.optim.Adam.step))


class AdamW(WithoutCompiler, torch.optim.AdamW):
    """AdamW (arXiv 1711.05101)."""

    step: Any = torch.no_grad()(unwrap(torch.optim.AdamW.step))


class SGD(WithoutCompiler, torch.optim.SGD):
    """SGD with momentum."""

    step: Any = torch.no_grad()(unwrap(torch.optim.SGD.step))
