"""The faults of a cluster: one function per fault, which causes it, yields the sign by which it must be noticed, and
undoes it.

A fault without a sign need not be noticed, but must do no harm.
"""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.forgery import broken_agents, damage, damaged, forged, other_heartbeats, plant
from tests.chaos.scene import CLOCK, Scene, Sign
from tests.lab.driver import ACTIVE
from tests.lab.hosts import Host
from tests.lab.processes import command_line, state
from tests.lab.program import END_SECONDS

Act = Callable[[Scene, Host], AbstractContextManager[Sign | None]]
# What a fault affects; one of each at a time, so that they combine.
MACHINE, WORKER, MAIN = "machine", "worker", "main"
AGENT = ".pyz "  # in the command line of our program on a host
CLOCK_JUMPS = (-1e9, -86_400.0, -60.0, 60.0, 86_400.0, 1e9)  # seconds
SLOW_MBIT = 0.3
SECOND_SECONDS = 180.0  # in which another Coach has started and reached the machines
SETTLED_STATES = {ACTIVE, "Error", "Offline"}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of fault."""

    name: str
    act: Act
    of: str  # MACHINE, WORKER or MAIN
    lasts: bool  # until it is undone; otherwise it happens at once
    weight: int  # how often it is drawn, relative to the others


KINDS: dict[str, Kind] = {}


def fault(of: str, *, lasts: bool, weight: int = 2) -> Callable[[Callable[[Scene, Host], Iterator[Sign | None]]], Act]:
    """Register a function as a kind of fault."""

    def enter(function: Callable[[Scene, Host], Iterator[Sign | None]]) -> Act:
        act = contextmanager(function)
        KINDS[function.__name__] = Kind(name=function.__name__, act=act, of=of, lasts=lasts, weight=weight)
        return act

    return enter


# Machines and their network.


@fault(MACHINE, lasts=True, weight=4)
def cut_link(scene: Scene, host: Host) -> Iterator[Sign | None]:
    host.link.cut()
    yield scene.is_lost(host)
    host.link.heal()


@fault(MACHINE, lasts=True)
def lose_packets(scene: Scene, host: Host) -> Iterator[Sign | None]:
    host.link.blackhole()
    yield scene.is_lost(host)
    host.link.heal()


@fault(MACHINE, lasts=True)
def slow_link(scene: Scene, host: Host) -> Iterator[Sign | None]:
    host.link.shape(SLOW_MBIT)
    yield None
    host.link.shape(None)


@fault(MACHINE, lasts=True)
def freeze_machine(scene: Scene, host: Host) -> Iterator[Sign | None]:
    host.freeze()
    yield scene.is_lost(host)
    host.thaw()


@fault(MACHINE, lasts=True)
def reboot(scene: Scene, host: Host) -> Iterator[Sign | None]:
    host.poweroff()
    yield scene.is_lost(host)
    host.boot()


@fault(MACHINE, lasts=True)
def kill_sshd(scene: Scene, host: Host) -> Iterator[Sign | None]:
    host.kill_sshd()
    yield scene.is_lost(host)
    host.start_sshd()


@fault(MACHINE, lasts=True)
def freeze_sshd(scene: Scene, host: Host) -> Iterator[Sign | None]:
    frozen = scene.processes(host, "sshd")
    _signal(frozen, signal.SIGSTOP)
    yield scene.is_lost(host)
    _signal(scene.processes(host, "sshd"), signal.SIGCONT)


@fault(MACHINE, lasts=False)
def end_sessions(scene: Scene, host: Host) -> Iterator[Sign | None]:
    """Kill all sshds and immediately start another, as an update does."""
    host.kill_sshd()
    host.start_sshd()
    yield None


@fault(MACHINE, lasts=False, weight=3)
def kill_agent(scene: Scene, host: Host) -> Iterator[Sign | None]:
    """The agent is killed; another one is begun on the same connection."""
    host.kill(AGENT)
    yield None


@fault(MACHINE, lasts=True)
def freeze_agent(scene: Scene, host: Host) -> Iterator[Sign | None]:
    """The agent is stopped for ever, as on a disk that hangs; the machine is connected again, with another agent."""
    frozen = _agents(host)
    _signal(frozen, signal.SIGSTOP)
    yield (lambda: bool(set(_agents(host)) - set(frozen))) if frozen else None
    _signal(frozen, signal.SIGCONT)


@fault(MACHINE, lasts=True)
def broken_agent(scene: Scene, host: Host) -> Iterator[Sign | None]:
    """Every agent there says what it must not: garbage, half a frame, a frame without end, or that it is another
    version.
    """
    with broken_agents(scene, host):
        host.kill(AGENT)
        yield scene.is_lost(host)
    host.kill(AGENT)  # unlike real ones, they do not notice that nobody is connected to them


@fault(MACHINE, lasts=True, weight=1)
def outdated_code(scene: Scene, host: Host) -> Iterator[Sign | None]:
    """The machine has other code and its worker dies: it must not play with that code."""
    file = host.home / "keima" / "keima" / "worker" / "loop.py"
    ours = file.read_bytes()
    # If another fault has filled the disk, the file is cut short, which also makes it another version.
    file.write_bytes(ours + b"\n# Another version.\n")
    host.kill_sshd()
    host.kill("keima/__main__.py")
    host.start_sshd()
    yield None
    file.write_bytes(ours)


# Workers.


@fault(WORKER, lasts=False, weight=4)
def kill_worker(scene: Scene, host: Host) -> Iterator[Sign | None]:
    replaced = scene.is_replaced(host)
    host.kill("keima/__main__.py")
    yield replaced


@fault(WORKER, lasts=True, weight=3)
def freeze_worker(scene: Scene, host: Host) -> Iterator[Sign | None]:
    frozen = scene.driver.worker_processes(host)
    _signal(frozen, signal.SIGSTOP)
    lost = scene.is_lost(host)
    yield (lambda: lost() or all(state(pid) in "ZX" for pid in frozen)) if frozen else None  # a reboot also ends it
    _signal(frozen, signal.SIGCONT)


@fault(WORKER, lasts=True)
def fill_worker_disk(scene: Scene, host: Host) -> Iterator[Sign | None]:
    host.fill_disk()
    yield scene.is_not_active(host)
    host.free_disk()


@fault(WORKER, lasts=False)
def delete_folder(scene: Scene, host: Host) -> Iterator[Sign | None]:
    """The worker's folder is deleted while it plays; files that were only there are lost."""
    replaced = scene.is_replaced(host)
    scene.driver.poll()
    scene.excused |= dict.fromkeys(scene.driver.spool(host), f"{host.name}'s folder was deleted")
    shutil.rmtree(scene.folder(host), ignore_errors=True)
    yield replaced


@fault(WORKER, lasts=False)
def second_worker(scene: Scene, host: Host) -> Iterator[Sign | None]:
    """A second worker is started by hand in the same folder."""
    line = [
        host.python,
        "keima/keima/__main__.py",
        "worker",
        "--folder",
        f"keima/workers/{host.name}",
        "--log",
        "second.log",
    ]
    host.run(["setsid", "-f", *line])
    yield None


@fault(WORKER, lasts=True)
def worker_clock(scene: Scene, host: Host) -> Iterator[Sign | None]:
    with _jump(scene, host.home / CLOCK):
        yield None


@fault(WORKER, lasts=False)
def damage_inbox(scene: Scene, host: Host) -> Iterator[Sign | None]:
    """Bits flip in the files sent to the worker; half of the time it must read them again at once."""
    files = [path for path in scene.folder(host).glob("inbox/*") if path.is_file()]
    if files:
        damage(scene, scene.chance.choice(files))
    if scene.chance.random() < 0.5:
        yield None
        return
    replaced = scene.is_replaced(host)
    host.kill("keima/__main__.py")
    yield replaced


@fault(WORKER, lasts=False, weight=3)
def damage_outbox(scene: Scene, host: Host) -> Iterator[Sign | None]:
    """Bits flip in finished games before they are fetched."""
    found = sorted(scene.driver.spool(host))
    if found:
        batch = scene.chance.choice(found)
        scene.excused[batch] = f"it was damaged in {host.name}'s outbox"
        with suppress(FileNotFoundError):
            damage(scene, scene.folder(host) / "outbox" / f"{batch}.games")
        yield None
        return
    sample = scene.a_received_batch(of=host)
    yield plant(scene, host, damaged(scene, sample[1])) if sample else None


@fault(WORKER, lasts=False)
def repeat_games(scene: Scene, host: Host) -> Iterator[Sign | None]:
    """The worker delivers games a second time, under another name."""
    yield forged(scene, host, {"first_game": None})


@fault(WORKER, lasts=False)
def invent_games(scene: Scene, host: Host) -> Iterator[Sign | None]:
    """The worker delivers games that were not granted."""
    yield forged(scene, host, {"first_game": 2**40})


@fault(WORKER, lasts=False)
def pose_as_another(scene: Scene, host: Host) -> Iterator[Sign | None]:
    yield forged(scene, host, {"worker": "somebody-else"})


@fault(WORKER, lasts=False)
def older_rules(scene: Scene, host: Host) -> Iterator[Sign | None]:
    """A worker of an earlier version delivers games played by its own rules."""
    yield forged(scene, host, {"rules_version": 0, "first_game": scene.granted(host)[0] - 10})


@fault(WORKER, lasts=False)
def illegal_games(scene: Scene, host: Host) -> Iterator[Sign | None]:
    """Well-formed games in the right place, with illegal moves."""
    yield forged(scene, host, {"first_game": scene.granted(host)[0] - 10}, illegal=True)


@fault(WORKER, lasts=True)
def nonsense_heartbeats(scene: Scene, host: Host) -> Iterator[Sign | None]:
    """Well-formed heartbeats with impossible numbers, between real ones."""
    most = 2**53
    numbers = {
        "finished": most,
        "begun": most,
        "granted": most,
        "evaluations": most,
        "parallel_games": most,
        "model_version": most,
    }
    rates = {"speed": 1e308, "games_per_second": 1e308, "evaluations_per_second": 1e308}
    text = {"state": "playing", "error": "", "note": "\x1b]0;owned\x07\x1b[2J" + "x" * 900, "order": "../../etc"}
    chosen = {**numbers, **rates, **text}
    with other_heartbeats(
        scene, host, {key: chosen[key] for key in scene.chance.sample(sorted(chosen), 8)} | {"state": "playing"}
    ):
        yield None


@fault(WORKER, lasts=True)
def older_heartbeats(scene: Scene, host: Host) -> Iterator[Sign | None]:
    """A worker of another version writes heartbeats that cannot be read, between real ones."""
    with other_heartbeats(scene, host, {"protocol": 0, "mood": "good"}):
        yield None


# The main node.


@fault(MAIN, lasts=True, weight=3)
def kill_coach(scene: Scene, host: Host) -> Iterator[Sign | None]:
    scene.coach_is_down = True
    scene.driver.kill()
    yield None
    _start_coach(scene)


@fault(MAIN, lasts=True, weight=1)
def stop_coach(scene: Scene, host: Host) -> Iterator[Sign | None]:
    """Ctrl-C: afterwards everything reachable must be cleaned up."""
    assert scene.driver.process
    scene.coach_is_down = True
    scene.driver.process.send_signal(signal.SIGINT)
    yield None
    code = scene.driver.process.wait(END_SECONDS)
    if code != 128 + signal.SIGINT:
        scene.problems.append(f"the Coach ended with exit code {code} after Ctrl-C")
    _start_coach(scene)


@fault(MAIN, lasts=True)
def freeze_coach(scene: Scene, host: Host) -> Iterator[Sign | None]:
    assert scene.driver.process
    _signal([scene.driver.process.pid], signal.SIGSTOP)
    yield None
    _signal([scene.driver.process.pid], signal.SIGCONT)


@fault(MAIN, lasts=False, weight=3)
def kill_fleet(scene: Scene, host: Host) -> Iterator[Sign | None]:
    """The Coach must start another process for the fleet."""
    before = scene.driver.fleet_processes()
    _signal(before, signal.SIGKILL)
    yield lambda: scene.driver.fleet_processes() not in ([], before)


@fault(MAIN, lasts=True)
def freeze_fleet(scene: Scene, host: Host) -> Iterator[Sign | None]:
    """After a minute the Coach replaces the process; a shorter pause must do no harm."""
    frozen = scene.driver.fleet_processes()
    _signal(frozen, signal.SIGSTOP)
    yield None
    _signal(frozen, signal.SIGCONT)


@fault(MAIN, lasts=True)
def fill_main_disk(scene: Scene, host: Host) -> Iterator[Sign | None]:
    scene.fill_main_disk()
    yield None
    scene.free_main_disk()


@fault(MAIN, lasts=True)
def main_clock(scene: Scene, host: Host) -> Iterator[Sign | None]:
    with _jump(scene, scene.main_disk / CLOCK):
        yield None


@fault(MAIN, lasts=True)
def damage_games(scene: Scene, host: Host) -> Iterator[Sign | None]:
    """A received batch is damaged on the main node's disk and restored later, as from a backup; sometimes the Coach is
    killed in between.
    """
    sample = scene.a_received_batch()
    if sample is None:
        yield None
        return
    path = scene.driver.run_dir / "games" / f"{sample[0]}.games"
    path.write_bytes(damaged(scene, sample[1]))
    if scene.chance.random() < 0.5:
        log = scene.driver.run_dir / "coach.log"
        before = log.read_text(errors="replace").count(": resumed from ")
        scene.coach_is_down = True
        scene.driver.kill()
        _start_coach(scene)
        scene.damaged_session = before if scene.damaged_session is None else scene.damaged_session
    yield scene.audit_names(sample[0])
    path.write_bytes(sample[1])


@fault(MAIN, lasts=True, weight=1)
def second_coach(scene: Scene, host: Host) -> Iterator[Sign | None]:
    """Another run's Coach lists the same machines and leaves them alone or takes them over; it releases them or is
    killed.
    """
    second, takes_over = scene.another(), scene.chance.random() < 0.5
    second.start("--distributed", *(["--takeover"] if takes_over else []))
    deadline = time.monotonic() + SECOND_SECONDS
    while time.monotonic() < deadline and second.runs and not set(second.states().values()) & SETTLED_STATES:
        scene.poll()
        time.sleep(0.1)
    yield scene.is_not_active(host) if takes_over and second.states().get(host.name) == ACTIVE else None
    second.kill() if scene.chance.random() < 0.5 else second.interrupt()


# What they share.


def _agents(host: Host) -> list[int]:
    return [pid for pid in host.pids() if AGENT in command_line(pid) and state(pid) not in "ZX"]


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _start_coach(scene: Scene) -> None:
    scene.driver.start()
    scene.coach_is_down = False


@contextmanager
def _jump(scene: Scene, folder: Path) -> Iterator[None]:
    offset = folder / "offset"
    with suppress(OSError):  # a full disk
        offset.write_text(str(scene.chance.choice(CLOCK_JUMPS)))
    yield
    offset.unlink(missing_ok=True)
