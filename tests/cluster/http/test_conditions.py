from datetime import datetime
from pathlib import Path

from keima.cluster.http.conditions import Conditions, runs_on_battery


class Machine:
    """Power supplies, processor times and clocks of a test."""

    def __init__(self, folder: Path) -> None:
        self.power, self.processor, self.seconds = folder / "power", folder / "stat", 0.0
        self.power.mkdir()
        self.times = [0, 0, 0, 0, 0, 0, 0, 0]
        self.wall = datetime(2026, 11, 30, 12, 0)
        self.run(0)

    def supply(self, name: str, **files: str) -> None:
        """Add or change a power supply."""
        (self.power / name).mkdir(exist_ok=True)
        for file, text in files.items():
            (self.power / name / file).write_text(f"{text}\n")

    def run(self, seconds: float, *, owner: float = 0.0) -> None:
        """Let time pass, in which the owner's programs take a share of the processor and ours the rest."""
        ticks = int(seconds * 100)
        self.times[0] += int(ticks * owner)
        self.times[1] += ticks - int(ticks * owner)
        self.seconds += seconds
        self.processor.write_text(f"cpu  {' '.join(map(str, self.times))} 0 0\ncpu0 1 2 3\n")

    def conditions(self, **options: object) -> Conditions:
        """Return the conditions of this machine."""
        return Conditions(
            clock=lambda: self.seconds,
            now=lambda: self.wall,
            power=self.power,
            processor=self.processor,
            **options,  # type: ignore[arg-type]
        )


def test_an_idle_machine_on_mains_plays(tmp_path: Path) -> None:
    assert Machine(tmp_path).conditions().reason_to_pause() == ""


def test_quiet_hours_are_kept_and_named(tmp_path: Path) -> None:
    conditions = Machine(tmp_path).conditions(quiet_hours="mon-fri 09:00-18:00")
    assert conditions.reason_to_pause() == "quiet hours until Mon 18:00"


def test_a_laptop_pauses_on_battery_unless_its_user_wants_otherwise(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.supply("BAT0", type="Battery", status="Discharging")
    machine.supply("AC", type="Mains", online="0")
    assert "battery" in machine.conditions().reason_to_pause()
    assert machine.conditions(on_battery=True).reason_to_pause() == ""
    machine.supply("AC", online="1")
    assert machine.conditions().reason_to_pause() == ""


def test_a_machine_without_known_supplies_does_not_run_on_battery(tmp_path: Path) -> None:
    assert not runs_on_battery(tmp_path / "none")
    machine = Machine(tmp_path)
    machine.supply("hidpp", type="Battery", status="Unknown")
    assert not runs_on_battery(machine.power)


def test_it_pauses_while_somebody_works_and_goes_on_after_a_while(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    conditions, beside = machine.conditions(), machine.conditions(beside_work=True)
    machine.run(10, owner=0.6)
    assert conditions.reason_to_pause() == "somebody works here"
    assert beside.reason_to_pause() == ""
    paused = 0
    while conditions.reason_to_pause():
        machine.run(10)
        paused += 1
    assert paused == 3


def test_our_own_work_at_the_lowest_priority_does_not_count(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    conditions = machine.conditions()
    machine.run(10, owner=0.1)
    assert conditions.reason_to_pause() == ""
