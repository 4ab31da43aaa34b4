"""Machines from several sources."""

from keima.cluster.machines.machine_source import MachineSources
from keima.config.sections.workers import WorkerSettings
from tests.cluster.listed_machines import ListedMachines

MINE, SEAT = WorkerSettings(host="worker1"), WorkerSettings(host="seat-1")


def test_each_machine_is_reached_through_its_source_also_after_it_is_no_longer_listed() -> None:
    file, seats = ListedMachines("config.yaml", MINE), ListedMachines("Seats", SEAT)
    sources = MachineSources(file, [seats])
    assert sources.other_machines([]) == ([SEAT], [])
    seats.listed.clear()
    assert sources.other_machines([]) == ([], [])
    assert [sources.source_title(name) for name in ("worker1", "seat-1")] == ["config.yaml", "Seats"]
    assert [sources.connect(machine).worker for machine in (MINE, SEAT)] == [
        "worker1 of config.yaml",
        "seat-1 of Seats",
    ]
    sources.close()
    assert seats.closed


def test_a_name_stays_with_the_source_that_listed_it_first() -> None:
    first, second = ListedMachines("First", SEAT), ListedMachines("Second", SEAT, WorkerSettings(host="seat-2"))
    sources = MachineSources(ListedMachines("config.yaml"), [first, second])
    found, problems = sources.other_machines(["worker1"])
    assert [machine.name for machine in found] == ["seat-1", "seat-2"]
    assert problems == ["seat-1 of Second is not used: another machine has this name"]
    assert sources.source_title("seat-1") == "First"


def test_a_name_of_the_config_is_left_to_it() -> None:
    sources = MachineSources(ListedMachines("config.yaml", SEAT), [ListedMachines("Seats", SEAT)])
    found, problems = sources.other_machines([SEAT.name])
    assert found == [] and len(problems) == 1
    assert sources.connect(SEAT).worker == "seat-1 of config.yaml"
