"""A recurrent policy and value network for PPO (arXiv 1707.06347).

Observations are scaled to mean 0 and variance 1 and go through a long short-term memory (Hochreiter & Schmidhuber,
1997) and two layers to the logits of the actions, or to the value. Actor and critic are separate or share the memory.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

CLOSED_GATE = -1e4  # its sigmoid is 0


class LSTMState(NamedTuple):
    """The state of one LSTM for N worlds."""

    hidden: Tensor  # [N, H]
    cell: Tensor  # [N, H]


class ActorCritic(nn.Module):
    """The recurrent actor and critic.

    Args:
        observation_size: F.
        num_actions: A.
        lstm_size: H, of each memory.
        hidden: the widths of the layers after it.
        shared: whether actor and critic have one memory.
        memory: False clears the memory at every step, to measure its effect.
        span: the number of steps that some units of a new network remember; 0: a few.
    """

    seen_observations: Tensor  # [3, F] float64: their number, their mean, the sum of their squared deviations from it
    seen_returns: Tensor  # [3, 1] float64, the same for discounted rewards

    def __init__(
        self,
        observation_size: int,
        num_actions: int,
        *,
        lstm_size: int = 256,
        hidden: Sequence[int] = (64, 64),
        shared: bool = False,
        memory: bool = True,
        span: int = 0,
    ) -> None:
        super().__init__()
        self.memory = memory
        self.actor_lstm = nn.LSTM(observation_size, lstm_size)
        self.critic_lstm = None if shared else nn.LSTM(observation_size, lstm_size)
        self.actor = make_layers([lstm_size, *hidden, num_actions], last_gain=0.01)
        self.critic = make_layers([lstm_size, *hidden, 1], last_gain=1.0)
        for lstm in self.lstms:
            initialize_lstm(lstm, span=span)
        self.register_buffer("seen_observations", torch.zeros(3, observation_size, dtype=torch.float64))
        self.register_buffer("seen_returns", torch.zeros(3, 1, dtype=torch.float64))

    @property
    def lstms(self) -> list[nn.LSTM]:
        """The actor's LSTM, and the critic's if it has its own."""
        return [lstm for lstm in (self.actor_lstm, self.critic_lstm) if lstm is not None]

    def critic_parameters(self) -> list[nn.Parameter]:
        """Return the parameters with the critic's learning rate: all that the actor does not use."""
        return [*self.critic.parameters(), *(self.critic_lstm.parameters() if self.critic_lstm else [])]

    def initial_states(self, count: int) -> list[LSTMState]:
        """Return the initial LSTM states of ``count`` worlds."""
        size, device = self.actor_lstm.hidden_size, self.seen_returns.device
        return [LSTMState(*torch.zeros(2, count, size, device=device)) for _ in self.lstms]

    def advance(self, observations: Tensor, memories: Sequence[LSTMState]) -> list[LSTMState]:
        """Return the LSTM states after observations ``[N, F]``: the actor's, and the critic's if it has its own."""
        before = memories if self.memory else self.initial_states(len(observations))
        return [
            LSTMState(*torch.lstm_cell(observations, memory, *_lstm_weights(lstm)))
            for lstm, memory in zip(self.lstms, before, strict=True)
        ]

    def unroll(self, observations: Tensor, starts: Tensor, memories: Sequence[LSTMState]) -> tuple[Tensor, Tensor]:
        """Return policy logits ``[L, N, A]`` and values ``[L, N]`` of N sequences ``[L, N, F]``, with gradients through
        time.

        Args:
            observations: ``[L, N, F]``, scaled.
            starts: bool ``[L, N]``: whether an episode begins at the step, so that its memory is blank; the first
                step's is ignored.
            memories: before the first step, blank where an episode begins there.
        """
        lived = [
            self._unroll_lstm(lstm, observations, starts, memory)
            for lstm, memory in zip(self.lstms, memories, strict=True)
        ]
        return self.actor(lived[0]), self.critic(lived[-1]).squeeze(-1)

    def _unroll_lstm(self, lstm: nn.LSTM, observations: Tensor, starts: Tensor, memory: LSTMState) -> Tensor:
        if self.memory:
            return unroll_lstm(lstm, observations, starts, memory)
        length, count, size = observations.shape
        lived: Tensor = lstm(observations.reshape(1, length * count, size))[0]
        return lived.reshape(length, count, -1)


def _lstm_weights(lstm: nn.LSTM) -> list[Tensor]:
    """Return input and recurrent weights and biases ``[4 * H, ...]``; gates in order: input, forget, cell, output."""
    return [*lstm.all_weights[0]]


def unroll_lstm(lstm: nn.LSTM, inputs: Tensor, starts: Tensor, memory: LSTMState) -> Tensor:
    """Return the output ``[L, N, H]`` of an LSTM that is reset where an episode starts; see ``ActorCritic.unroll``.

    The libraries' fast LSTMs run whole sequences in one call and know no starts. So a step of our own is put in before
    each of them: one more input, which is 1 there alone, shuts the input, forget and output gates, and behind it both
    parts of the memory are 0. No gradient passes it either.
    """
    within = starts.clone()
    within[0] = False
    state = (memory.hidden[None], memory.cell[None])
    weight, *others = _lstm_weights(lstm)
    if not within.any():
        return _run_cells(inputs, state, [weight, *others])
    length, count, size = inputs.shape
    places = torch.arange(length, device=inputs.device)[:, None] + within.cumsum(0)  # [L, N]: each step's new place
    columns = torch.arange(count, device=inputs.device).expand(length, count)
    longer = inputs.new_zeros(int(places[-1].max()) + 1, count, size + 1)
    longer[places, columns, :size] = inputs
    longer[places[within] - 1, columns[within], size] = 1.0
    # Input, forget, cell, output.
    gate = weight.new_tensor([CLOSED_GATE, CLOSED_GATE, 0.0, CLOSED_GATE]).repeat_interleave(lstm.hidden_size)[:, None]
    return _run_cells(longer, state, [torch.cat([weight, gate], 1), *others])[places, columns]


def _run_cells(inputs: Tensor, state: tuple[Tensor, Tensor], weights: Sequence[Tensor]) -> Tensor:
    if inputs.device.type == "cpu" and torch.is_autocast_enabled("cpu") and not _processor_has_short_lstm():
        with torch.autocast("cpu", enabled=False):
            return _run_cells(inputs.float(), state, weights)
    weight, *others = weights
    # inputs, state, weights, with biases, one layer, no dropout, training, one direction, time first
    lived: Tensor = torch.lstm(
        _pad_to_even(inputs), state, [_pad_to_even(weight), *others], True, 1, 0.0, True, False, False
    )[0]
    return lived


@functools.cache
def _processor_has_short_lstm() -> bool:
    """Return whether oneDNN has a bfloat16 LSTM for this processor; it needs AVX-512."""
    lstm = nn.LSTM(2, 2)
    try:
        with torch.autocast("cpu", torch.bfloat16):
            lstm(torch.zeros(1, 1, 2))
    except RuntimeError:
        return False
    return True


def _pad_to_even(tensor: Tensor) -> Tensor:
    """Pad an odd number of inputs with a 0: oneDNN's 16-bit LSTM takes three times as long with odd numbers."""
    return pad(tensor, (0, 1)) if tensor.shape[-1] % 2 else tensor


class FullTanh(nn.Tanh):
    """A hyperbolic tangent in 32 bits: on CPUs torch takes four times as long in 16 bits."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the tanh of values of any shape."""
        return torch.tanh(inputs.float())


def make_layers(widths: Sequence[int], *, last_gain: float) -> nn.Sequential:
    """Return linear layers with tanh between them and orthogonal weights (arXiv 2005.12729 measures their effect)."""
    parts: list[nn.Module] = []
    for i, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        last = i == len(widths) - 2
        linear = nn.Linear(inputs, outputs)
        nn.init.orthogonal_(linear.weight, last_gain if last else math.sqrt(2))
        nn.init.zeros_(linear.bias)
        parts += [linear] if last else [linear, FullTanh()]
    return nn.Sequential(*parts)


def initialize_lstm(lstm: nn.LSTM, *, span: int = 0) -> None:
    """Initialize an LSTM: orthogonal weights per gate, and gates that remember at first.

    The forget gate begins open (Jozefowicz, Zaremba & Sutskever, 2015), or where a ``span`` is given, such that the
    units forget at all speeds up to once in so many steps, and take in as slowly (C. Tallec & Y. Ollivier, arXiv
    1804.11188).
    """
    weight_ih, weight_hh, bias, other_bias = _lstm_weights(lstm)
    with torch.no_grad():
        for gate in (*weight_ih.chunk(4), *weight_hh.chunk(4)):
            nn.init.orthogonal_(gate)
        nn.init.zeros_(bias)
        nn.init.zeros_(other_bias)
        take_in, forget = bias.chunk(4)[:2]
        if span > 2:
            forget.copy_(torch.empty_like(forget).uniform_(1, span - 1).log())
            take_in.copy_(-forget)
        else:
            forget.fill_(1.0)
