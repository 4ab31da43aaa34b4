"""How a Coach follows the workers in its settings file, and what requests do to its fleet."""

from pathlib import Path

import pytest

from keima.base.reports.worker_status import ClusterNetwork, ClusterStatus, WorkerState, WorkerStatus
from keima.cluster.control.command_handler import CommandHandler
from keima.cluster.control.requests import Request, RequestAnswer, RequestInbox, ask_coach
from keima.cluster.machines.machine_source import MachineSources
from keima.config.commands import cluster
from keima.config.sections.workers import WorkerSettings
from tests.cluster.control.test_requests import CONFIG, beside, config, folder, inbox
from tests.cluster.listed_machines import ListedMachines

__all__ = ["config", "folder", "inbox"]


class Fleet:
    """Stands for the cluster and records its calls. A leaving machine is gone when ``left`` is called."""

    def __init__(self, *machines: WorkerSettings) -> None:
        self.all = {machine.name: machine for machine in machines}
        self.leaving: set[str] = set()
        self.commands: list[str] = []
        self.states: dict[str, WorkerState] = {}

    @property
    def machines(self) -> tuple[WorkerSettings, ...]:
        return tuple(machine for name, machine in self.all.items() if name not in self.leaving)

    def add(self, machine: WorkerSettings) -> None:
        if machine.name in self.all:
            raise ValueError(f"{machine.name} is still leaving")
        self.all[machine.name] = machine
        self.commands.append(f"add {machine.name}")

    def remove(self, name: str) -> None:
        self.leaving.add(name)
        self.commands.append(f"remove {name}")

    def left(self) -> None:
        for name in self.leaving:
            del self.all[name]
        self.leaving.clear()

    def retry(self, name: str) -> None:
        self._known(name)
        self.commands.append(f"retry {name}")

    def restart(self, name: str) -> None:
        self._known(name)
        self.commands.append(f"restart {name}")

    def stop(self, name: str) -> None:
        self._known(name)
        self.commands.append(f"stop {name}")

    def take_over(self, name: str) -> None:
        self._known(name)
        self.commands.append(f"take over {name}")

    def _known(self, name: str) -> None:
        if name not in self.all:
            raise ValueError(f"there is no worker {name}; the workers are: {', '.join(self.all)}")

    def cluster(self) -> ClusterStatus:
        states = self.states or dict.fromkeys(self.all, WorkerState.SYNCING)
        workers = tuple(WorkerStatus(name=name, machine=name, state=state) for name, state in states.items())
        return ClusterStatus(
            workers=workers, network=ClusterNetwork(model_version=1, sync_seconds=None, network_mb_per_minute=0.0)
        )


class Coach:
    """A Coach that only reacts to commands, with a clock that is advanced by hand."""

    def __init__(self, inbox: RequestInbox, config: Path, *, machines: int = 2) -> None:
        self.now = 0.0
        self.events: list[str] = []
        self.fleet = Fleet(*(WorkerSettings(host=f"worker{n}.example.com", user="me") for n in range(1, machines + 1)))
        self.slots = ListedMachines("Slots")
        self.handler = CommandHandler(
            self.fleet,
            config,
            inbox=inbox,
            sources=MachineSources(ListedMachines(str(config)), [self.slots]),
            log_event=self.events.append,
            clock=lambda: self.now,
        )

    def cycle(self, *, times: int = 1) -> None:
        for _ in range(times):
            self.now += 2.0
            self.handler.step()


@pytest.fixture
def coach(inbox: RequestInbox, config: Path) -> Coach:
    return Coach(inbox, config)


def asked(coach: Coach, folder: Path, request: Request) -> RequestAnswer:
    return ask_coach(request, folder, sleep=beside(coach.cycle))


def test_commands_reach_the_fleet(coach: Coach, folder: Path) -> None:
    assert asked(coach, folder, Request(command="restart", worker="worker1")).ok
    assert asked(coach, folder, Request(command="stop", worker="worker2")).ok
    assert asked(coach, folder, Request(command="takeover", worker="worker1")).ok
    assert asked(coach, folder, Request(command="retry", worker="worker2")).ok
    assert coach.fleet.commands == ["restart worker1", "stop worker2", "take over worker1", "retry worker2"]


def test_an_unknown_worker_is_refused_with_the_known_ones(coach: Coach, folder: Path) -> None:
    answer = asked(coach, folder, Request(command="restart", worker="worker9"))
    assert answer == RequestAnswer(ok=False, text="there is no worker worker9; the workers are: worker1, worker2")


def test_the_status_is_read_from_the_status_file(coach: Coach, folder: Path) -> None:
    assert "Workers active: 0/2" in asked(coach, folder, Request(command="status")).text


def test_the_status_of_some_workers_is_shown_by_their_names_and_groups(
    coach: Coach, folder: Path, config: Path
) -> None:
    group = WorkerSettings(host="node1", group="lab")
    assert asked(coach, folder, Request(command="add", machine=group)).ok
    coach.fleet.states = dict.fromkeys(["worker1", "worker2", "node1"], WorkerState.ACTIVE)
    shown = asked(coach, folder, Request(command="status", workers=("worker1", "lab"))).text
    assert "worker1" in shown and "node1" in shown and "worker2" not in shown
    refused = asked(coach, folder, Request(command="status", workers=("cellar",)))
    assert not refused.ok and refused.text.startswith("there is no worker cellar; the workers are: worker1, worker2")


def test_an_added_machine_plays_and_stays_in_the_settings(coach: Coach, folder: Path, config: Path) -> None:
    answer = asked(coach, folder, Request(command="add", machine=WorkerSettings(host="new.example.com", user="you")))
    assert answer.ok
    assert (
        f"If it is bare, it is in Error until you run: {cluster('bootstrap new', config)}; or set `bootstrap: true`"
        in answer.text
    )
    assert "    - {host: new.example.com, user: you}\n" in config.read_text()
    coach.cycle(times=5)
    assert coach.fleet.commands == ["add new"]


def test_no_command_is_named_where_machines_are_set_up_automatically(coach: Coach, folder: Path, config: Path) -> None:
    config.write_text(config.read_text().replace("distributed:\n", "distributed:\n  bootstrap: true\n"))
    answer = asked(coach, folder, Request(command="add", machine=WorkerSettings(host="new.example.com", user="you")))
    assert "If it is bare, it is set up first" in answer.text and "--bootstrap" not in answer.text


def test_a_removed_machine_leaves_and_disappears_from_the_settings(coach: Coach, folder: Path, config: Path) -> None:
    assert asked(coach, folder, Request(command="remove", worker="worker1")).ok
    assert "worker1" not in config.read_text()
    coach.cycle(times=5)
    assert coach.fleet.commands == ["remove worker1"]


def test_a_change_that_the_settings_forbid_changes_nothing(coach: Coach, folder: Path, config: Path) -> None:
    answer = asked(coach, folder, Request(command="add", machine=WorkerSettings(host="worker1.other.com")))
    assert not answer.ok and "names must be unique" in answer.text
    assert asked(coach, folder, Request(command="remove", worker="worker1")).ok
    answer = asked(coach, folder, Request(command="remove", worker="worker2"))
    assert not answer.ok and "enabled is true" in answer.text
    assert coach.fleet.commands == ["remove worker1"]


def test_a_machine_added_to_the_file_joins(coach: Coach, config: Path) -> None:
    config.write_text(CONFIG + "    - host: worker3\n")
    coach.cycle(times=2)
    assert coach.fleet.commands == ["add worker3"]


def test_machines_of_another_source_join_and_leave_as_it_lists_them(coach: Coach, config: Path) -> None:
    coach.slots.listed = [WorkerSettings(host="slot-1"), WorkerSettings(host="slot-2")]
    coach.cycle()
    del coach.slots.listed[0]
    coach.cycle(times=2)
    assert coach.fleet.commands == ["add slot-1", "add slot-2", "remove slot-1"]
    assert coach.events == ["slot-1: it is no longer in Slots"]
    config.write_text(CONFIG + "    - host: worker3\n")
    coach.cycle(times=3)
    assert coach.fleet.commands[3:] == ["add worker3"]


def test_a_machine_of_another_source_with_a_name_of_the_file_is_reported_and_not_used(coach: Coach) -> None:
    coach.slots.listed = [WorkerSettings(host="worker1.elsewhere.com")]
    coach.cycle(times=3)
    assert coach.fleet.commands == []
    assert len(coach.events) == 1 and "worker1 of Slots is not used" in coach.events[0]


def test_a_half_written_file_sends_no_machine_away(coach: Coach, config: Path) -> None:
    whole = CONFIG + "    - host: worker3\n"
    for end in (whole.index("    - {host: worker2"), len(CONFIG), len(whole)):  # each is valid YAML
        config.write_text(whole[:end])
        coach.cycle()
    assert coach.fleet.commands == []
    coach.cycle()
    assert coach.fleet.commands == ["add worker3"]


def test_a_machine_deleted_from_the_file_leaves(coach: Coach, config: Path) -> None:
    config.write_text(CONFIG.replace("    - {host: worker2.example.com, user: me}\n", ""))
    coach.cycle(times=3)
    assert coach.fleet.commands == ["remove worker2"]


def test_a_machine_with_changed_settings_leaves_and_comes_back(coach: Coach, config: Path) -> None:
    config.write_text(CONFIG.replace("worker2.example.com, user: me", "worker2.example.com, user: you"))
    coach.cycle(times=5)
    assert coach.fleet.commands == ["remove worker2"]
    coach.fleet.left()
    coach.cycle(times=5)
    assert coach.fleet.commands == ["remove worker2", "add worker2"]
    assert coach.fleet.all["worker2"].user == "you"


def all_changed(text: str) -> str:
    return text.replace("user: me", "user: you")


def test_if_all_active_machines_change_they_leave_and_come_back_one_at_a_time(coach: Coach, config: Path) -> None:
    coach.fleet.states = {"worker1": WorkerState.ACTIVE, "worker2": WorkerState.SYNCING}
    config.write_text(all_changed(CONFIG))
    coach.cycle(times=5)
    assert coach.fleet.commands == ["remove worker1"]
    assert "1 more with new settings keep the old ones until worker1 plays again" in " ".join(coach.events)
    coach.fleet.left()
    coach.fleet.states["worker1"] = WorkerState.SYNCING
    coach.cycle(times=5)
    assert coach.fleet.commands == ["remove worker1", "add worker1"]
    coach.fleet.states["worker1"] = WorkerState.ACTIVE
    coach.cycle(times=2)
    assert coach.fleet.commands == ["remove worker1", "add worker1", "remove worker2"]


def test_machines_that_do_not_play_get_their_new_settings_at_once(coach: Coach, config: Path) -> None:
    coach.fleet.states = {"worker1": WorkerState.ERROR, "worker2": WorkerState.OFFLINE}
    config.write_text(all_changed(CONFIG))
    coach.cycle(times=2)
    assert coach.fleet.commands == ["remove worker1", "remove worker2"]


def test_a_change_that_breaks_machines_affects_only_one_which_recovers_when_it_is_reverted(
    coach: Coach, config: Path
) -> None:
    coach.fleet.states = {"worker1": WorkerState.ACTIVE, "worker2": WorkerState.ACTIVE}
    config.write_text(all_changed(CONFIG))
    coach.cycle(times=2)
    coach.fleet.left()
    coach.fleet.states["worker1"] = WorkerState.ERROR
    coach.cycle(times=5)
    config.write_text(CONFIG)
    coach.cycle(times=2)
    assert coach.fleet.commands == ["remove worker1", "add worker1", "remove worker1"]
    coach.fleet.left()
    coach.cycle(times=5)
    assert coach.fleet.commands[3:] == ["add worker1"]


@pytest.mark.parametrize(("count", "returning"), [(3, 1), (8, 2), (12, 3)])
def test_at_most_a_quarter_of_many_machines_is_away_at_a_time(
    inbox: RequestInbox, config: Path, count: int, returning: int
) -> None:
    coach = Coach(inbox, config, machines=count)
    coach.fleet.states = dict.fromkeys(coach.fleet.all, WorkerState.ACTIVE)
    config.write_text(
        CONFIG + "".join(f"    - {{host: worker{n}.example.com, user: me}}\n" for n in range(3, count + 1))
    )
    coach.cycle(times=2)
    config.write_text(all_changed(config.read_text()))
    coach.cycle(times=9)
    assert len(coach.fleet.commands) == returning
    for _ in range(count):
        coach.fleet.left()
        coach.cycle(times=9)
    assert [line for line in coach.fleet.commands if line.startswith("add")] == [
        f"add worker{n}" for n in range(1, count + 1)
    ]


def test_a_deleted_machine_may_leave_its_weight_behind(coach: Coach, config: Path) -> None:
    config.write_text(CONFIG + "  worker_weights: {worker1: 1.0, worker2: 2.0}\n")
    coach.cycle(times=2)
    config.write_text(config.read_text().replace("    - {host: worker2.example.com, user: me}\n", ""))
    coach.cycle(times=3)
    assert coach.fleet.commands == ["remove worker2"]
    assert any("worker_weights: no worker is called worker2" in line for line in coach.events)


def test_an_invalid_file_is_reported_once_and_not_followed(coach: Coach, config: Path) -> None:
    config.write_text(CONFIG.replace("workers:", "wokers:"))
    coach.cycle(times=3)
    assert len(coach.events) == 1 and "did you mean distributed.workers?" in coach.events[0]
    assert coach.fleet.commands == []
    config.write_text(CONFIG + "    - host: worker3\n")
    coach.cycle(times=2)
    assert coach.fleet.commands == ["add worker3"]


def test_a_missing_file_sends_no_machine_away(coach: Coach, config: Path) -> None:
    config.unlink()
    coach.cycle(times=3)
    assert len(coach.events) == 1 and coach.fleet.commands == []


def test_an_unchanged_file_is_not_read(coach: Coach, config: Path) -> None:
    coach.cycle(times=3)
    assert coach.fleet.commands == [] and coach.events == []
