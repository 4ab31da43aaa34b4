"""Machines that join a fleet by the real program, over real TLS: no game is lost and none counted twice."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from keima.data.records import decode_batch
from tests.cluster.http.crowd_fleet import CrowdFleet, Volunteer
from tests.lab.processes import wait_until
from tests.small_run import model_bytes

pytestmark = [pytest.mark.slow, pytest.mark.trial]


class Count:
    """What the Coach would know: it receives all games and counts them."""

    def __init__(self, crowd: CrowdFleet) -> None:
        self.crowd, self.delivered, self.seen = crowd, dict[str, int](), set[str]()

    def step(self) -> None:
        """Receive, and grant more."""
        for worker in self.crowd.fleet.workers:
            here = self.delivered.get(worker, 0)
            self.crowd.fleet.grant(worker, granted=here + 60, delivered=here)
        for pending in self.crowd.fleet.collect():
            batch = decode_batch(pending.fetch(2**22))
            if pending.batch_id not in self.seen:
                assert batch.first_game == self.delivered.get(pending.worker, 0), pending.batch_id
                self.seen.add(pending.batch_id)
                self.delivered[pending.worker] = batch.first_game + batch.num_games
            self.crowd.fleet.release(pending, delivered=self.delivered[pending.worker])

    def has_stepped(self) -> bool:
        """Step, and return True."""
        self.step()
        return True

    def wait_for(self, games: int, *, workers: int = 1) -> None:
        """Step until so many workers have delivered so many more games each."""
        before = dict(self.delivered)

        def enough() -> bool:
            self.step()
            more = [count - before.get(worker, 0) for worker, count in self.delivered.items()]
            return sum(each >= games for each in more) >= workers

        self.crowd.wait(enough)


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[CrowdFleet]:
    opened = CrowdFleet(tmp_path)
    opened.fleet.publish(1, model_bytes(1))
    yield opened
    opened.close()


def test_machines_join_play_with_a_new_model_and_leave_with_ctrl_c(crowd: CrowdFleet) -> None:
    count = Count(crowd)
    count.wait_for(60, workers=2)
    crowd.fleet.publish(2, model_bytes(2))
    crowd.wait(lambda: count.has_stepped() and {w.model_version for w in crowd.fleet.cluster().workers} == {2})
    first = crowd.volunteers[0]
    assert first.end() == 130
    assert "games handed in" in first.said() and "handed in the next time" not in first.said()
    outbox = list(first.folder.glob("*/workers/*/outbox/*.games"))
    count.wait_for(40)
    names = {path.stem for path in outbox}
    assert names <= count.seen  # what the door has acknowledged comes to the Coach although its machine has left


def test_a_machine_that_is_killed_comes_back_with_its_games(crowd: CrowdFleet) -> None:
    count = Count(crowd)
    count.wait_for(60, workers=2)
    for _ in range(3):
        crowd.volunteers[0].kill()
        crowd.volunteers[0].start()
        count.wait_for(60, workers=2)


def test_a_frozen_machine_loses_nothing(crowd: CrowdFleet) -> None:
    count = Count(crowd)
    count.wait_for(60, workers=2)
    process = crowd.volunteers[0].process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    until = time.monotonic() + 8
    crowd.wait(lambda: count.has_stepped() and time.monotonic() > until)
    os.kill(process.pid, signal.SIGCONT)
    count.wait_for(60, workers=2)


def test_at_the_end_of_the_run_its_machines_wait_for_it_to_go_on(tmp_path: Path) -> None:
    crowd = CrowdFleet(tmp_path, volunteers=1)
    crowd.fleet.publish(1, model_bytes(1))
    try:
        count = Count(crowd)
        count.wait_for(60)
        crowd.fleet.close()
        volunteer = crowd.volunteers[0]
        wait_until(lambda: "the run has stopped" in volunteer.said(), "the machine to notice it", seconds=60)
        assert volunteer.end() == 130, "until then it waits for the run to go on"
    finally:
        crowd.close()


def test_a_second_program_on_the_same_folder_is_refused(crowd: CrowdFleet) -> None:
    first = crowd.volunteers[0]
    second = Volunteer(str(crowd.door.link), first.folder, "v0")
    second.output = first.folder.with_suffix(".second")
    second.start()
    assert second.process is not None and second.process.wait(60) == 2
    assert "another keima join plays" in second.said()
