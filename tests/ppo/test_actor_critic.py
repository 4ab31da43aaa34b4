from typing import Any

import pytest
import torch
from torch import Tensor

from keima.ppo.actor_critic import ActorCritic, LSTMState

pytestmark = pytest.mark.numeric


def network(*, shared: bool = False, memory: bool = True, shown: int = 3) -> ActorCritic:
    torch.manual_seed(1)
    built = ActorCritic(shown, 4, lstm_size=8, hidden=(5,), shared=shared, memory=memory)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return built


def stepped(net: ActorCritic, observations: Tensor, starts: Tensor, memories: list[LSTMState]) -> tuple[Tensor, Tensor]:
    """Return ``unroll`` computed one step after the other, with everything forgotten where an episode starts."""
    logits, values = [], []
    for t, shown in enumerate(observations):
        if t > 0:
            kept = ~starts[t][:, None]
            memories = [LSTMState(memory.hidden * kept, memory.cell * kept) for memory in memories]
        memories = net.advance(shown, memories)
        logits.append(net.actor(memories[0].hidden))
        values.append(net.critic(memories[-1].hidden).squeeze(-1))
    return torch.stack(logits), torch.stack(values)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("likely", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("shown", [3, 4])
def test_whole_sequences_equal_their_steps_wherever_episodes_start(shared: bool, likely: float, shown: int) -> None:
    net = network(shared=shared, shown=shown)
    observations, starts = torch.randn(12, 6, shown), torch.rand(12, 6) < likely
    memories = [LSTMState(*torch.randn(2, 6, 8)) for _ in net.lstms]
    whole = net.unroll(observations, starts, memories)
    by_steps = stepped(net, observations, starts, memories)
    torch.testing.assert_close(whole, by_steps, atol=1e-5, rtol=1e-4)
    gradients = [
        torch.autograd.grad(logits.square().sum() + values.sum(), net.parameters())
        for logits, values in (whole, by_steps)
    ]
    torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("shown", [3, 4])
@pytest.mark.parametrize("likely", [0.0, 0.5])
def test_the_library_s_lstm_gets_an_even_number_of_inputs(
    shown: int, likely: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, widths = torch.lstm, list[int]()

    def noted(inputs: Tensor, state: tuple[Tensor, Tensor], weights: list[Tensor], *options: Any) -> Any:
        widths.extend([inputs.shape[-1], weights[0].shape[-1]])
        return run(inputs, state, weights, *options)

    monkeypatch.setattr(torch, "lstm", noted)
    net = network(shared=True, shown=shown)
    net.unroll(torch.randn(12, 6, shown), torch.rand(12, 6) < likely, net.initial_states(6))
    assert len(widths) == 2 and len(set(widths)) == 1 and widths[0] % 2 == 0


def test_nothing_of_an_episode_reaches_the_next_one() -> None:
    net, starts = network(), torch.zeros(10, 1, dtype=torch.bool)
    starts[6] = True
    observations = torch.randn(10, 1, 3, requires_grad=True)
    logits, values = net.unroll(observations, starts, net.initial_states(1))
    (gradient,) = torch.autograd.grad(logits[6:].sum() + values[6:].sum(), observations)
    assert (gradient[:6] == 0).all() and (gradient[6:] != 0).any()


def test_without_memory_only_the_present_counts() -> None:
    net = network(memory=False)
    observations, starts = torch.randn(5, 2, 3), torch.zeros(5, 2, dtype=torch.bool)
    whole = net.unroll(observations, starts, [LSTMState(*torch.randn(2, 2, 8)) for _ in net.lstms])
    alone = net.unroll(observations[3:4], starts[3:4], net.initial_states(2))
    torch.testing.assert_close(whole[0][3], alone[0][0])
    torch.testing.assert_close(whole, stepped(net, observations, starts, net.initial_states(2)))


def test_every_parameter_learns_at_the_actor_s_or_the_critic_s_rate() -> None:
    for shared in (False, True):
        net = network(shared=shared)
        critic = {id(parameter) for parameter in net.critic_parameters()}
        logits, _ = net.unroll(torch.randn(3, 2, 3), torch.zeros(3, 2, dtype=torch.bool), net.initial_states(2))
        logits.square().sum().backward()
        assert {id(p) for p in net.parameters() if p.grad is None} == critic


def test_the_first_weights_are_orthogonal_and_the_first_policy_is_nearly_even() -> None:
    torch.manual_seed(1)
    net = ActorCritic(3, 4, lstm_size=8)
    for gate in net.actor_lstm.weight_hh_l0.chunk(4):
        torch.testing.assert_close(gate @ gate.T, torch.eye(8), atol=1e-5, rtol=0)
    logits, _ = net.unroll(torch.randn(20, 2, 3), torch.zeros(20, 2, dtype=torch.bool), net.initial_states(2))
    assert (logits.softmax(-1) - 0.25).abs().max() < 0.01


@pytest.mark.parametrize("likely", [0.0, 0.3])
def test_in_sixteen_bits_sequences_are_the_same_up_to_rounding_on_every_processor(likely: float) -> None:
    net = network()
    generator = torch.Generator().manual_seed(2)
    observations = torch.randn(6, 5, 3, generator=generator)
    starts = torch.rand(6, 5, generator=generator) < likely
    fine, _ = net.unroll(observations, starts, net.initial_states(5))
    with torch.autocast("cpu", torch.bfloat16):
        short, _ = net.unroll(observations, starts, net.initial_states(5))
    assert (short.float() - fine).norm() < 0.05 * fine.norm()
