"""Files sent to and received from a worker's machine, one by one."""

from pathlib import Path

import pytest

from keima.base.files import sha256_hex
from keima.cluster.agent.commands import FolderAnswer
from keima.cluster.fleet.mirror import drop_damaged, find_waiting_files, open_mirror, read_core_hours
from keima.cluster.fleet.poll import PollResult
from keima.cluster.ssh.errors import RemoteFailure
from keima.cluster.ssh.transport import Transport
from keima.config.own_modules import keep_module
from keima.data.records import encode_batch
from keima.evaluation.match_jobs import Contestant
from keima.worker.worker_folder import Assignment, batch_name
from tests.cluster.fleet.connected_machine import NAME, Machine
from tests.small_run import GAME
from tests.synthetic import synthetic_batch

MODELS = {Contestant(version=number, sha256=sha256_hex(b"%d" % number)): b"%d" % number for number in (1, 2)}


class Folder:
    """A worker's folder that we own, on a reachable machine, with its mirror."""

    def __init__(self, root: Path) -> None:
        self.machine = Machine(root)
        self.machine.play()
        self.mirror = self.machine.connection._workers[NAME].mirror
        self.cable: Transport = self.machine.connection._transport  # type: ignore[assignment]

    def puts(self) -> list[str]:
        return [Path(file).name for _, what, file in self.machine.network.done if what == "put"]

    def wants(self, *players: Contestant) -> Assignment:
        return self.machine.assignment().model_copy(update={"players": players})


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_models_of_evaluation_games_are_sent_once_and_only_if_they_are_known(folder: Folder) -> None:
    one, two = MODELS
    stranger = Contestant(version=3, sha256=sha256_hex(b"3"))
    before = len(folder.puts())
    for _ in range(2):
        folder.mirror.send_players(folder.cable, folder.wants(one, stranger), MODELS)
    folder.mirror.send_players(folder.cable, folder.wants(one, two), MODELS)
    assert folder.puts()[before:] == [one.file_name, two.file_name]
    assert (folder.machine.folder().inbox / two.file_name).read_bytes() == b"2"


def test_a_user_s_game_is_sent_once_and_before_the_assignment_that_names_it(folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "othello.py").write_text("answer = 42\n")
    name = keep_module(tmp_path / "othello.py")
    before = len(folder.puts())
    wanted = folder.machine.assignment().model_copy(update={"modules": (name,)})
    for lease in ("one", "two"):
        folder.machine.connection.assign(NAME, wanted.model_copy(update={"lease": lease}))
        folder.machine.step()
    assert folder.puts()[before:] == [f"{name}.py", "assignment.json", "assignment.json"]
    assert folder.machine.folder().module_path(name).read_text() == "answer = 42\n"


def test_the_number_of_received_files_is_reported(folder: Folder) -> None:
    for first in (0, 10, 20):
        file = f"{batch_name('run', NAME, first, 10, f'{first:016x}')}.games"
        (folder.machine.folder().outbox / file).write_bytes(b"games")
    folder.machine.step()
    assert len(folder.machine.connection.arrived) == 3
    assert (folder.mirror.waiting, folder.mirror.more) == (0, False)
    folder.machine.step()
    assert len(folder.machine.connection.arrived) == 3


def test_core_hours_never_fall_when_a_worker_begins_again_in_an_empty_folder(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.play()

    def hours(seconds: float) -> float:
        machine.beat(model_version=1, processor_seconds=seconds)
        machine.step()
        heartbeat = machine.connection.snapshot.workers[0].heartbeat
        assert heartbeat
        return heartbeat.core_hours

    assert [hours(3600.0), hours(7200.0)] == [1.0, 2.0]
    assert [hours(0.0), hours(1800.0)] == [2.0, 2.5]  # its home was wiped, or another run had it
    machine.connection = machine.open_connection()  # the Coach is resumed
    machine.publish(1)
    machine.assign()
    machine.step(steps=2)
    assert hours(3600.0) == 3.0
    assert hours(0.0) == 3.0
    assert read_core_hours(machine.root / "workers", machine.run_id) == {NAME: 3.0}


def test_files_that_a_power_cut_has_damaged_are_dropped_from_the_mirror_and_so_fetched_again(tmp_path: Path) -> None:
    batch = encode_batch(synthetic_batch(GAME, games=2, num_simulations=2, run_id="run", worker="w", batch_id="whole"))
    contents = {"whole": batch, "cut": batch[:-1], "empty": b"", "zeros": bytes(len(batch))}
    names = {each: f"{batch_name('run', 'w', first, 1, each)}.games" for first, each in enumerate(contents)}
    outbox = open_mirror(tmp_path, "w", "run").outbox
    for each, content in contents.items():
        (outbox / names[each]).write_bytes(content)
    waiting = find_waiting_files(tmp_path, "run")
    assert waiting == {"w": {*names.values()}}
    drop_damaged(tmp_path, waiting)
    assert waiting == {"w": {names["whole"]}}
    assert [path.name for path in outbox.iterdir()] == [names["whole"]]


def test_a_full_disk_there_is_an_error_with_the_remedy(folder: Folder) -> None:
    full = PollResult(answer=FolderAnswer(failed="OSError: [Errno 28] No space left on device"))
    with pytest.raises(RemoteFailure, match="free space on its disk"):
        folder.mirror.store_files(full, limit=0, machine=NAME, report_file=list[str]().append)
