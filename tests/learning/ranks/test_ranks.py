"""Several ranks learn what one process learns from the same batches."""

import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from keima.learning.ranks.process_group import (
    ALONE,
    STORE_PORT,
    TIMEOUT,
    RankInfo,
    RankLost,
    Ranks,
    SurplusRank,
    connect_store,
    interface_towards,
    join_ranks,
    keep_ranks_with_room,
    read_rank_timeout,
    unused_nccl_variables,
)
from keima.networks.files.weights_file import load_weights
from tests.learning.ranks.rank_program import free_port, train
from tests.sources import ROOT

pytestmark = pytest.mark.timeout(1000)


# By how many ranks, and which trainings one start of the program does: importing PyTorch takes longer than they do.
STARTS = (
    (2, ("whole", "sharded", "not sharded")),
    (2, ("sharded muon", "not sharded muon")),
    (3, ("float64", "gradients")),
    (4, ("whole", "groups")),
)
RunRanks = Callable[[str, int], list[dict[str, Tensor]]]


@pytest.fixture(scope="module")
def run_ranks(tmp_path_factory: pytest.TempPathFactory) -> RunRanks:
    """Return the results of so many processes that do a job together."""
    folders: dict[tuple[int, tuple[str, ...]], Path] = {}

    def run(job: str, count: int) -> list[dict[str, Tensor]]:
        start = next(start for start in STARTS if start[0] == count and job in start[1])
        if start not in folders:
            folders[start] = tmp_path_factory.mktemp("ranks")
            line = [sys.executable, "-m", "tests.learning.ranks.rank_program", str(folders[start]), str(count)]
            ended = subprocess.run(
                [*line, *start[1]], cwd=ROOT, capture_output=True, text=True, timeout=900, check=False
            )
            assert ended.returncode == 0, ended.stderr
        return [load_weights(folders[start] / job / f"rank{rank}.pth") for rank in range(count)]

    return run


def largest_difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[name].double() - b[name].double()).abs().max()) for name in a)


@pytest.mark.slow
@pytest.mark.parametrize(("job", "count"), [("whole", 2), ("whole", 4), ("groups", 4)])
def test_ranks_end_with_the_weights_of_one_process(run_ranks: RunRanks, job: str, count: int) -> None:
    several = run_ranks(job, count)
    assert all(largest_difference(other, several[0]) == 0 for other in several)
    assert largest_difference(several[0], train(job, ALONE)) < 1e-5


@pytest.mark.medium
def test_up_to_rounding_ranks_do_exactly_what_one_process_does(run_ranks: RunRanks) -> None:
    several = run_ranks("float64", 3)
    assert largest_difference(several[0], train("float64", ALONE)) < 1e-9


@pytest.mark.medium
def test_gradients_of_ranks_are_those_of_one_process(run_ranks: RunRanks) -> None:
    alone = train("gradients", ALONE)
    together = run_ranks("gradients", 3)
    for rank in together:
        for name, gradient in rank.items():
            torch.testing.assert_close(gradient, alone[name], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["", pytest.param(" muon", marks=pytest.mark.numeric)])
def test_a_sharded_optimizer_does_what_each_rank_s_own_does_and_holds_a_part(
    run_ranks: RunRanks, optimizer: str
) -> None:
    shared, own = run_ranks(f"sharded{optimizer}", 2), run_ranks(f"not sharded{optimizer}", 2)
    held = [int(rank.pop("held")) for rank in (*shared, *own)]
    assert held[0] + held[1] == held[2] == held[3] and max(held[:2]) < 0.7 * held[2]
    assert all(largest_difference(rank, own[0]) == 0 for rank in shared)


def test_a_process_without_instructions_is_alone() -> None:
    with join_ranks(RankInfo(), environment={}) as ranks:
        assert (ranks.rank, ranks.world_size, ranks.is_main, ranks.is_alone) == (0, 1, True, True)


def test_torchrun_s_variables_are_read_and_the_command_line_takes_precedence() -> None:
    variables = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "3", "TORCHELASTIC_RESTART_COUNT": "2"}
    with join_ranks(RankInfo(world_size=1), environment=variables) as ranks:
        assert (ranks.world_size, ranks.local_rank, ranks.restarts) == (1, 3, 2)


@pytest.mark.parametrize(
    ("place", "remedy"),
    [
        (RankInfo(world_size=2), "--rank, from 0 to 1"),
        (RankInfo(world_size=2, rank=2), "--rank 2 is out of range"),
        (RankInfo(world_size=0), "out of range for --world-size 0"),
        (RankInfo(local_rank=-1), "--local-rank -1"),
    ],
)
def test_impossible_ranks_are_refused(place: RankInfo, remedy: str) -> None:
    with pytest.raises(ValueError, match=remedy), join_ranks(place, environment={}):
        pass


def test_a_variable_that_is_no_number_is_named() -> None:
    with pytest.raises(ValueError, match="WORLD_SIZE='two'"), join_ranks(RankInfo(), environment={"WORLD_SIZE": "two"}):
        pass


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_nccl_needs_gpus() -> None:
    with (
        pytest.raises(ValueError, match="use gloo"),
        join_ranks(RankInfo(rank=0, world_size=2), backend="nccl", environment={}),
    ):
        pass


@pytest.mark.medium
def test_restarted_ranks_do_not_mistake_the_dead_for_the_living() -> None:
    torchruns = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    torchruns.set(STORE_PORT, str(free_port()))  # where a dead rank 0 was
    first, second = (
        RankInfo(rank=rank, world_size=2, master_addr="127.0.0.1", master_port=torchruns.port) for rank in (0, 1)
    )
    with ThreadPoolExecutor() as pool:
        later = pool.submit(connect_store, second)
        time.sleep(1.5)  # rank 1 has found the old address by now
        assert not later.done()
        store = connect_store(first)
        store.set("greeting", "hello")
        assert later.result(timeout=240).get("greeting") == b"hello"


def test_ranks_listen_where_the_first_one_s_machine_can_reach_them() -> None:
    assert interface_towards("127.0.0.1") == "lo"
    assert interface_towards("no.such.machine.invalid") is None


def test_ranks_of_torchrun_without_room_leave() -> None:
    places = [RankInfo(rank=rank, world_size=4, local_rank=rank) for rank in range(4)]
    staying = [keep_ranks_with_room(place, 4, 2) for place in places[:2]]
    assert [(place.rank, place.world_size) for place in staying] == [(0, 2), (1, 2)]
    for place in places[2:]:
        with pytest.raises(SurplusRank):
            keep_ranks_with_room(place, 4, 2)


@pytest.mark.medium
def test_each_machine_keeps_as_many_ranks_as_it_has_room_for() -> None:
    torchruns = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    rooms = {0: 1, 1: 2}  # of two machines with three ranks each

    def place(rank: int) -> tuple[int | None, int | None] | None:
        given = RankInfo(
            rank=rank, world_size=6, local_rank=rank % 3, master_addr="127.0.0.1", master_port=torchruns.port
        )
        try:
            found = keep_ranks_with_room(given, 3, rooms[rank // 3])
        except SurplusRank:
            return None
        return found.rank, found.world_size

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(place, range(6))) == [(0, 3), None, None, (1, 3), (2, 3), None]


def test_ranks_wait_as_long_as_nccl_timeout_says() -> None:
    assert read_rank_timeout({}) == TIMEOUT
    assert read_rank_timeout({"NCCL_TIMEOUT": "3600"}) == timedelta(hours=1)
    for text in ("soon", "0"):
        with pytest.raises(ValueError, match="^NCCL_TIMEOUT='?" + text):
            read_rank_timeout({"NCCL_TIMEOUT": text})


def test_a_missing_rank_is_waited_for_no_longer_than_that() -> None:
    place = RankInfo(rank=0, world_size=2, master_addr="127.0.0.1", master_port=free_port())
    with pytest.raises(RuntimeError, match=r"^the 2 ranks have not met at 127\.0\.0\.1, port "):  # noqa: SIM117
        with join_ranks(place, device="cpu", environment={"NCCL_TIMEOUT": "1"}):
            pass


def test_variables_of_nccl_without_effect_are_reported() -> None:
    variables = {"NCCL_DEBUG": "INFO", "NCCL_TIMEOUT": "3600", "PATH": "/bin"}
    assert unused_nccl_variables(ALONE, {"PATH": "/bin"}) == ""
    assert (
        unused_nccl_variables(ALONE, variables)
        == "NCCL_DEBUG, NCCL_TIMEOUT: read only by NCCL, which connects GPUs; here one process trains alone"
    )
    gloo = unused_nccl_variables(Ranks(world_size=2, backend="gloo"), variables)
    assert gloo.startswith("NCCL_DEBUG: read only by NCCL") and "the ranks use gloo, which reads NCCL_TIMEOUT" in gloo
    assert unused_nccl_variables(Ranks(world_size=2, backend="nccl"), variables) == ""


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_after_a_rank_is_lost_nothing_waits_for_it(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    aborted: list[str] = []
    monkeypatch.setattr("keima.learning.ranks.process_group.abort_nccl", lambda: aborted.append("nccl"))
    ranks = Ranks(rank=0, world_size=2, backend=backend)
    ranks.raise_if_lost()
    ranks.declare_lost("rank 1 has ended")
    ranks.declare_lost("rank 0 has noticed it too")
    assert aborted == ([backend] if backend == "nccl" else [])
    assert not ranks.is_loss_raised
    for operation in (
        ranks.raise_if_lost,
        lambda: ranks.all_reduce_sum_([torch.zeros(1)]),
        lambda: ranks.all_reduce_max(1),
    ):
        with pytest.raises(RankLost, match="rank 1 has ended"):
            operation()
    assert ranks.is_loss_raised
