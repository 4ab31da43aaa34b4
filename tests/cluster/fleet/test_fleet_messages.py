"""The messages between the Coach and the fleet's process."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from keima.base.reports.worker_status import ClusterNetwork, ClusterStatus, WorkerState, WorkerStatus
from keima.cluster.fleet.ownership import make_owner
from keima.cluster.fleet.process.messages import (
    HEAD,
    PIPE_BYTES,
    Channel,
    FleetState,
    GameName,
    News,
    Opening,
    Update,
)
from keima.config.load import load_settings
from keima.config.schema import Settings
from keima.worker.worker_folder import Heartbeat
from tests.sources import EXPERIMENTS

MACHINES = """
distributed:
  defaults: {python: /opt/python, processes: 4}
  workers:
    - {hosts: "node[01-03].lab", group: lab}
    - {host: gpu.lab, gpu_ids: [0, 1], processes: auto}
  worker_weights: {node01: 2.0}
"""


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    """Two ends of a channel."""
    first, second = os.pipe(), os.pipe()
    channels = Channel(first[0], second[1]), Channel(second[0], first[1])
    yield channels
    for channel in channels:
        channel.close()


def passed(ends: tuple[Channel, Channel], message: BaseModel) -> BaseModel:
    """Return a message at the other end."""
    here, there = ends
    here.send(message)
    (found,) = there.receive_messages()
    return found


def opening(settings: Settings) -> Opening:
    return Opening(
        factory="module:function",
        root=Path("workers"),
        config=Path("config.yaml"),
        run_dir=Path("run"),
        settings=settings,
        game=GameName(name="go", options={"size": 9}),
        run_id="run",
        owner=make_owner("run", run_dir=Path("run"), lease_seconds=900.0),
    )


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: str(path.stem))
def test_settings_arrive_as_they_are(ends: tuple[Channel, Channel], path: Path) -> None:
    sent = opening(load_settings(path))
    assert passed(ends, sent) == sent


def test_machines_arrive_as_they_are_whatever_their_defaults(ends: tuple[Channel, Channel], tmp_path: Path) -> None:
    text = EXPERIMENTS[0].read_text(encoding="utf-8")
    (tmp_path / "some.yaml").write_text(text.partition("distributed:")[0] + MACHINES)
    settings = load_settings(tmp_path / "some.yaml")
    assert [machine.processes for machine in settings.distributed.workers] == [4, 4, 4, "auto"]
    sent = opening(settings)
    assert passed(ends, sent) == sent


def test_a_state_arrives_as_it_is(ends: tuple[Channel, Channel]) -> None:
    beat = Heartbeat(run_id="run", worker="a", beat=7, pid=1, state="playing", games_per_second=0.1, error="umlaut ä")
    worker = WorkerStatus(name="a", state=WorkerState.ACTIVE, share=1.0, machine="a", disk_free=None)
    cluster = ClusterStatus(
        workers=(worker,), network=ClusterNetwork(model_version=3, sync_seconds=None, network_mb_per_minute=0.25)
    )
    sent = FleetState(
        heard=0,
        workers=("a", "b"),
        ready_workers=(),
        heartbeats={"a": beat, "b": None},
        cluster=cluster,
        decisions={"a": 3},
        withdrawn={},
    )
    assert passed(ends, sent) == sent


def test_messages_larger_than_a_pipe_arrive_in_pieces_and_in_order(ends: tuple[Channel, Channel]) -> None:
    here, there = ends
    sent = [Update(number=number, accounts={"x" * 3 * PIPE_BYTES: (number, 0)}) for number in range(2)]
    for message in sent:
        here.send(message)
    assert here.unsent_bytes > PIPE_BYTES
    found: list[BaseModel] = []
    while len(found) < len(sent):
        found += there.receive_messages()
        here.flush()
    assert found == sent and here.unsent_bytes == 0


def test_the_end_of_the_other_process_is_seen_after_its_last_message(ends: tuple[Channel, Channel]) -> None:
    here, there = ends
    here.send(News(arrived=(("a", "file"),)))
    here.close()
    there.send(Update(number=1))
    assert [type(message) for message in there.receive_messages()] == [News]
    assert there.has_ended and there.unsent_bytes == 0


@pytest.mark.parametrize("data", [HEAD.pack(2**31, 0), HEAD.pack(2, 99) + b"{}", HEAD.pack(2, 1) + b"{}"])
def test_what_is_no_message_is_refused(data: bytes) -> None:
    reads, writes = os.pipe()
    channel = Channel(reads, writes)
    os.write(writes, data)
    with pytest.raises(ValueError, match=r"."):
        list(channel.receive_messages())
    channel.close()
