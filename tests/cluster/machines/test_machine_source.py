"""Machines from several sources."""

from keima.cluster.machines.machine_source import MachineSources
from keima.config.sections.workers import WorkerSettings
from tests.cluster.listed_machines import ListedMachines

MINE, SLOT = WorkerSettings(host="worker1"), WorkerSettings(host="slot-1")


def test_each_machine_is_reached_through_its_source_also_after_it_is_no_longer_listed() -> None:
    file, slots = ListedMachines("config.yaml", MINE), ListedMachines("Slots", SLOT)
    sources = MachineSources(file, [slots])
    assert sources.other_machines([]) == ([SLOT], [])
    slots.listed.clear()
    assert sources.other_machines([]) == ([], [])
    assert [sources.source_title(name) for name in ("worker1", "slot-1")] == ["config.yaml", "Slots"]
    assert [sources.connect(machine).worker for machine in (MINE, SLOT)] == [
        "worker1 of config.yaml",
        "slot-1 of Slots",
    ]
    sources.close()
    assert slots.closed


def test_a_name_stays_with_the_source_that_listed_it_first() -> None:
    first, second = ListedMachines("First", SLOT), ListedMachines("Second", SLOT, WorkerSettings(host="slot-2"))
    sources = MachineSources(ListedMachines("config.yaml"), [first, second])
    found, problems = sources.other_machines(["worker1"])
    assert [machine.name for machine in found] == ["slot-1", "slot-2"]
    assert problems == ["slot-1 of Second is not used: another machine has this name"]
    assert sources.source_title("slot-1") == "First"


def test_a_name_of_the_config_is_left_to_it() -> None:
    sources = MachineSources(ListedMachines("config.yaml", SLOT), [ListedMachines("Slots", SLOT)])
    found, problems = sources.other_machines([SLOT.name])
    assert found == [] and len(problems) == 1
    assert sources.connect(SLOT).worker == "slot-1 of config.yaml"
