import itertools
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from keima.base.random import seed_stream
from keima.learning.learner import LearnerState
from keima.learning.ranks.process_group import ALONE, Ranks
from keima.learning.update_step import UpdateStep
from keima.ppo import trainer as ppo
from keima.ppo.actor_critic import ActorCritic
from keima.ppo.reports import RoundReport
from keima.ppo.settings import PPOSettings, TradingSettings
from keima.ppo.trainer import MinibatchShare, PPOTrainer, episodes_for_rank, select_share, world_streams
from keima.ppo.worlds.memory_tasks import TMaze
from keima.ppo.worlds.trading import TradingMarkets
from keima.ppo.worlds.world import Worlds
from tests.small_networks import noted_gradients

QUICK = PPOSettings(num_steps=8, sequence_length=4, epochs=2, minibatches=2, target_kl=0)


def seeds(count: int, *, seed: int = 1, first: int = 0) -> np.ndarray:
    return np.array([seed_stream(seed, "world", first + b) for b in range(count)], np.uint64)


def trainer(
    worlds: Worlds | None = None, settings: PPOSettings = QUICK, *, seed: int = 1, ranks: Ranks = ALONE, **options: Any
) -> PPOTrainer:
    torch.manual_seed(seed)
    worlds = worlds or TradingMarkets(seeds(4, seed=seed), TradingSettings(window=6))
    sizes = {"lstm_size": 8, "hidden": (5,)} | options
    network = ActorCritic(worlds.observation_size, worlds.num_actions, **sizes)
    return PPOTrainer(network, worlds, settings, seed=seed, episodes=10**9, ranks=ranks)


class StopAfter:
    """Requests a stop after this many rounds."""

    def __init__(self, training: PPOTrainer, rounds: int) -> None:
        self.training, self.rounds = training, rounds
        self.seen: list[RoundReport] = []

    def round(self, report: RoundReport) -> None:
        self.seen.append(report)
        self.training.stop_requested = len(self.seen) == self.rounds

    def close(self) -> None:
        pass


def run(training: PPOTrainer, rounds: int) -> list[RoundReport]:
    watching = StopAfter(training, rounds)
    training.observers, training.stop_requested = [watching], False
    training.run()
    return watching.seen


@pytest.mark.medium
def test_a_seed_gives_the_same_network_to_the_bit() -> None:
    one, two = trainer(), trainer()
    run(one, 3)
    run(two, 3)
    assert all(
        torch.equal(a, b)
        for a, b in zip(one.network.state_dict().values(), two.network.state_dict().values(), strict=True)
    )


@pytest.mark.medium
def test_a_resumed_run_continues_bit_for_bit() -> None:
    unbroken, first, second = trainer(), trainer(), trainer(seed=9)
    run(unbroken, 5)
    run(first, 2)
    second.seed = 1
    kept = first.state()
    run(first, 1)  # the saved state does not change
    second.restore(kept)
    assert second.state().counters == kept.counters
    assert torch.uint64 not in {tensor.dtype for group in kept.tensors.values() for tensor in group.values()}
    run(second, 3)
    one, two = unbroken.state(), second.state()
    assert {**one.counters, "seconds": 0} == {**two.counters, "seconds": 0}
    for group, tensors in one.tensors.items():
        assert tensors.keys() == two.tensors[group].keys()
        assert not [name for name, tensor in tensors.items() if not torch.equal(tensor, two.tensors[group][name])]


def test_several_resumed_ranks_continue_in_new_markets_with_new_draws() -> None:
    """Only one rank's worlds are saved; the others restart, and not as they first began."""
    first = trainer()
    run(first, 1)
    once = first.state()
    run(first, 1)
    twice = first.state()

    def draws(state: LearnerState | None) -> list[int]:
        one_of_two = trainer(ranks=Ranks(rank=1, world_size=2))
        if state:
            own = {name: array.copy() for name, array in one_of_two.worlds.state().items()}
            one_of_two.restore(state)
            assert all(np.array_equal(array, own[name]) for name, array in one_of_two.worlds.state().items())
        return [int(stream) for stream in one_of_two.collector.streams]

    began, after_one, after_two = draws(None), draws(once), draws(twice)
    rank_0 = first.collector.streams.tolist()
    assert len({*began, *after_one, *after_two, *rank_0}) == 4 * 4
    assert draws(once) == after_one  # but they are the same every time the run continues from there


def test_two_ranks_draw_what_one_draws_for_as_many_worlds() -> None:
    apart = [world_streams(1, "actions", Ranks(rank=rank, world_size=2), 4) for rank in range(2)]
    assert np.array_equal(np.concatenate(apart), world_streams(1, "actions", ALONE, 8))


def test_the_scale_of_float16_is_kept_and_earlier_checkpoints_have_none() -> None:
    first, second = trainer(), trainer()
    first.update_step.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    second.update_step.scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    kept = first.state()
    second.restore(replace(kept, counters={name: kept.counters[name] for name in kept.counters if name != "scaler"}))
    assert second.update_step.scaler.get_scale() == 2.0
    second.restore(kept)
    assert second.update_step.scaler.get_scale() == 8.0
    second.restore(trainer().state())  # of a run in float32
    assert second.update_step.scaler.get_scale() == 8.0


def test_a_state_of_another_network_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit this network"):
        trainer(lstm_size=9).restore(trainer().state())


@pytest.mark.medium
def test_the_run_ends_with_its_episodes() -> None:
    training = trainer()
    training.episodes = 10
    last = training.run()
    assert last is not None and last.episodes_over == last.episodes_planned == 10
    assert training.run() is None


class Alike(Ranks):
    """Ranks that all show and report the same as this one."""

    def all_reduce_sum_(self, tensors: Sequence[torch.Tensor]) -> None:
        for tensor in tensors:
            tensor *= self.world_size

    def all_gather_tensor(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return [tensor] * self.world_size


@pytest.mark.medium
@pytest.mark.parametrize("world_size", [1, 3])
def test_a_round_is_reported_for_all_ranks_together(world_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        time, "perf_counter", map(float, itertools.count(10)).__next__
    )  # one second of acting, and one of learning
    training = trainer(ranks=Alike(world_size=world_size))
    training.episodes = planned = 300_000_000  # too many for single precision to count one by one
    assert (
        training.update_step.ranks is training.collector.ranks is training.ranks
    )  # sums of gradients, and of statistics
    first, second = run(training, 2)
    steps, ended = 8 * 4 * world_size, 4 * world_size  # one episode of six steps of each world, and a part of the next
    assert (first.round, first.steps, first.total_steps, first.world_size) == (1, steps, steps, world_size)
    assert (first.episodes.count, first.episodes_over, first.episodes_planned) == (ended, ended, planned)
    assert (first.seconds, first.steps_per_second, first.acting_share) == (2.0, steps / 2, 0.5)
    assert (second.round, second.steps, second.total_steps, second.seconds) == (2, steps, 2 * steps, 4.0)
    assert second.episodes_over == ended + second.episodes.count


@pytest.mark.medium
@pytest.mark.parametrize("rank", [0, 1])
def test_rank_0_alone_saves_the_state_after_a_number_of_episodes_and_at_the_end(rank: int) -> None:
    training = trainer(ranks=Alike(rank=rank, world_size=2))
    kept: list[int] = []
    training.keep = lambda state: kept.append(state.counters["episodes_over"])
    training.keep_every, training.episodes = 20, 60
    over = [0, *(report.episodes_over for report in run(training, 100))]
    assert over[-1] == 60 and len(over) > 5
    crossed = [after for before, after in itertools.pairwise(over) if before // 20 < after // 20]
    assert kept == ([*crossed, 60] if rank == 0 else [])


def test_episodes_are_divided_evenly_and_rank_0_takes_the_rest() -> None:
    assert [episodes_for_rank(10, Ranks(rank=rank, world_size=4)) for rank in range(4)] == [4, 2, 2, 2]
    assert [episodes_for_rank(3, Ranks(rank=rank, world_size=4)) for rank in range(4)] == [3, 0, 0, 0]
    assert episodes_for_rank(7, ALONE) == 7


def test_the_first_pass_over_a_rollout_changes_nothing_yet() -> None:
    """Before any step of the optimizer the ratios are all 1: nothing is clipped, and the policy has not moved."""
    training = trainer()
    rollout = training.collector.collect()
    for chosen in training.plan_minibatches(0):
        metrics = training.compute_losses(training.select_sequences(rollout, chosen.rows)).metrics
        assert metrics["approx_kl"].item() == pytest.approx(0, abs=1e-6) and metrics["clip_fraction"].item() == 0


@pytest.mark.parametrize("wanted", [True, False])
def test_observations_are_scaled_only_if_the_settings_say_so(wanted: bool) -> None:
    acting = trainer(settings=PPOSettings(**{**vars(QUICK), "scale_observations": wanted})).collector
    acting.collect()
    shift, scale = acting.observation_scale()
    assert shift.any() == wanted and (scale != 1).any() == wanted


def test_every_sequence_is_in_one_minibatch_of_an_epoch() -> None:
    rows = np.concatenate([chosen.rows for chosen in trainer().plan_minibatches(0)])
    assert sorted(rows.tolist()) == list(range(8))


def test_every_world_gives_one_sequence_to_a_minibatch_before_any_gives_two() -> None:
    training = trainer()
    first, second = training.plan_minibatches(0), training.plan_minibatches(1)
    assert len(first) == QUICK.minibatches == QUICK.num_steps // QUICK.sequence_length
    for chosen in first:
        assert sorted(chosen.rows // QUICK.minibatches) == list(range(training.worlds.num_envs))
    assert any(list(one.rows) != list(other.rows) for one, other in zip(first, second, strict=True))


def test_parts_have_a_multiple_of_eight_sequences_except_for_the_last() -> None:
    parts = MinibatchShare(np.arange(1045), 0.5).split(256)
    assert [len(part.rows) for part in parts] == [264, 264, 264, 253]
    assert np.array_equal(np.concatenate([part.rows for part in parts]), np.arange(1045))
    assert sum(part.share for part in parts) == pytest.approx(0.5)
    for few in (3, 24):
        assert [len(part.rows) for part in MinibatchShare(np.arange(few), 1.0).split(256)] == [few]


def test_the_sequences_of_a_minibatch_are_divided_by_their_owners() -> None:
    numbers = np.array([0, 5, 7, 9, 2])
    first, second = select_share(numbers, 0, 6), select_share(numbers, 6, 6)
    assert first.rows.tolist() == [0, 5, 2] and second.rows.tolist() == [1, 3]
    assert first.share == pytest.approx(0.6) and second.share == pytest.approx(0.4)
    nobody = select_share(numbers, 12, 6)
    assert nobody.share == 0 and len(nobody.rows) == 1


def first_gradients(training: PPOTrainer) -> dict[str, torch.Tensor]:
    """Return the gradients of a round's first minibatch, as the optimizer gets them."""
    found = noted_gradients(training.network, training.optimizer)
    run(training, 1)
    return found[0]


def five_markets() -> Worlds:
    return TradingMarkets(seeds(5), TradingSettings(window=6))


@pytest.mark.medium
def test_a_minibatch_in_parts_has_the_gradients_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = first_gradients(trainer(five_markets()))
    monkeypatch.setattr(ppo, "CACHED_STEPS", 2 * QUICK.sequence_length)
    monkeypatch.setattr(ppo, "ROW_MULTIPLE", 1)
    parted = trainer(five_markets())
    (chosen, *_) = parted.plan_minibatches(0)
    assert [len(part.rows) for part in chosen.split(parted.sequences_at_once(5))] == [3, 2]
    for name, gradient in first_gradients(parted).items():
        torch.testing.assert_close(gradient, whole[name], rtol=1e-4, atol=1e-6)


@pytest.mark.medium
def test_sixteen_bits_change_the_gradients_only_by_rounding() -> None:
    short, single = trainer(), trainer()
    short.update_step = UpdateStep(short.network, short.optimizer, clip_norm=QUICK.clip_norm, mixed_precision=True)
    fine = first_gradients(single)
    for name, gradient in first_gradients(short).items():
        assert gradient.dtype == torch.float32
        assert (gradient - fine[name]).norm() < 0.05 * fine[name].norm() + 1e-4, name
    assert all(parameter.isfinite().all() for parameter in short.network.parameters())


@pytest.mark.medium
def test_learning_ends_when_the_policy_has_moved_far_enough() -> None:
    timid = QUICK.model_copy(update={"target_kl": 1e-12, "epochs": 50})
    (report,) = run(trainer(settings=timid), 1)
    assert 1 <= report.learning["optimizer_steps"] < 10


@pytest.mark.medium
def test_actor_and_critic_learn_at_their_own_rates() -> None:
    tiny = QUICK.model_copy(update={"learning_rate_actor": 1e-30})
    training = trainer(settings=tiny)
    before = {name: tensor.clone() for name, tensor in training.network.named_parameters()}
    run(training, 1)
    after = training.network.named_parameters()
    moved = {name.partition(".")[0] for name, tensor in after if (tensor - before[name]).abs().max() > 1e-20}
    assert moved == {"critic", "critic_lstm"}


COUNTS = ("num_steps", "sequence_length", "epochs", "minibatches")
SHARES = ("gamma", "gae_lambda")
AMOUNTS = ("learning_rate_actor", "learning_rate_critic", "clip_coef", "clip_norm")


@pytest.mark.parametrize(
    "wrong",
    [
        *({name: 0} for name in COUNTS),
        *({name: number} for name in SHARES for number in (-0.1, 1.1)),
        *({name: 0.0} for name in AMOUNTS),
        {"sequence_length": 5},
    ],
)
def test_impossible_settings_are_refused(wrong: dict[str, Any]) -> None:
    ((name, number),) = wrong.items()
    with pytest.raises(ValueError, match=r"must be a multiple of sequence_length \(5\)" if number == 5 else name):
        PPOSettings(**QUICK.model_dump() | wrong)


def test_settings_may_have_their_smallest_and_largest_values() -> None:
    PPOSettings(**dict.fromkeys(COUNTS, 1), **dict.fromkeys(AMOUNTS, 1e-9), gamma=0.0, gae_lambda=1.0)
    PPOSettings(gamma=1.0, gae_lambda=0.0)


MAZE = PPOSettings(num_steps=32, sequence_length=32, minibatches=2, epochs=4, target_kl=0, learning_rate_actor=3e-3)


@pytest.mark.slow
@pytest.mark.parametrize("memory", [True, False])
def test_a_short_maze_needs_the_memory(memory: bool) -> None:
    training = trainer(TMaze(seeds(16), length=5), MAZE, lstm_size=16, memory=memory)
    last = run(training, 60)[-10:]
    right = sum(report.episodes.metrics["right_side"] for report in last) / sum(
        report.episodes.count for report in last
    )
    assert right > 0.95 if memory else 0.35 < right < 0.65
