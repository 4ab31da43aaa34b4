"""PyTorch's optimizers without its compiler, whose import takes seconds.

PyTorch's optimizers import the compiler only to exclude their own methods from compilation, and nothing is compiled
here. Without this import, new and resumed runs take their first step seconds sooner.
"""

from inspect import unwrap
from typing import Any

import torch
from torch.optim import Optimizer


class WithoutCompiler:
    """The undecorated versions of all optimizer methods whose decorators would import the compiler."""

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
