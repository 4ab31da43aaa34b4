"""From a bare machine to one that can play: our code under the name of its hash, an environment with the packages, and a look at both.

Every step finds out first whether it has been done, and long ones run on the machine by themselves: a bootstrap that was cut off
anywhere is gone on with by the next one, which may also find the long step finished.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from configs.schema import WorkerSettings
from distributed.check import findings, refuse, seats
from distributed.errors import RemoteFailure
from distributed.machine import (
    Alive,
    Probe,
    Started,
    Tail,
    call,
    environment,
    install_remote,
    own_python,
    printable,
    probe,
    release_folder,
    remedy_bootstrap,
    understood,
)
from distributed.release import PROJECT, WORKER_CLASS, Ours, ours, pack
from distributed.transport import Transport

REQUIREMENTS = "requirements.txt"
JOB = ".remote/jobs/environment"  # the place of the long step
REHEARSAL = ".remote/jobs/rehearsal"
REHEARSAL_GAME = "tic_tac_toe"
JOB_LOG = "logs/bootstrap.log"
# Runs a command at a place and leaves its exit code there.
WITH_EXIT_CODE = 'place=$1; shift; code=0; "$@" || code=$?; echo $code >"$place/exit.part"; mv "$place/exit.part" "$place/exit"'
POLL_SECONDS = 1.0
STILL_SECONDS = 30.0  # between two signs of life
JOB_SECONDS = 2 * 3600.0
NOT_TO_BE_MENDED = ("folder", "disk", "gpu")  # by anything that bootstrap does
CPU_TORCH = "https://download.pytorch.org/whl/cpu"


def bootstrap(
    transport: Transport,
    machine: WorkerSettings,
    *,
    tell: Callable[[str], None],
    worker_class: str = WORKER_CLASS,
    game: str = REHEARSAL_GAME,
    root: Path = PROJECT,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Make a machine ready to play, and tell line by line how it goes; a machine that is ready is only looked at.

    Raises:
        Refused: it lacks what nobody can install from here; the text says what and how.
        RemoteFailure: a step failed there.
        Unreachable: the connection is lost; what has begun goes on there.
    """
    for line in bootstrap_steps(transport, machine, worker_class=worker_class, game=game, root=root):
        if line:
            tell(line)
        else:
            sleep(POLL_SECONDS)


def bootstrap_steps(
    transport: Transport,
    machine: WorkerSettings,
    *,
    worker_class: str = WORKER_CLASS,
    game: str = REHEARSAL_GAME,
    root: Path = PROJECT,
) -> Iterator[str]:
    """The same step by step, for who has other things to do meanwhile: lines to tell, and an empty one when it is time to wait a second."""
    ours_here = ours(worker_class, root=root)
    install_remote(transport)
    found = probe(transport, machine, ours_here)
    gpus = f"{len(found.gpus)} {'GPU' if len(found.gpus) == 1 else 'GPUs'}" if found.gpus else "no GPU"
    yield f"found {found.platform}, {found.cpus} {'core' if found.cpus == 1 else 'cores'}, {gpus}, {found.disk_free / 1e9:.0f} GB free"
    refuse(transport.worker, (each for each in findings(found, machine, ours_here) if each.what in NOT_TO_BE_MENDED), named=True)
    if found.folder_of(ours_here.code_hash) is None:
        yield f"sends the code, {send_code(transport, machine, ours_here, root) / 1000:.0f} kB, to {release_folder(ours_here.code_hash)}"
        found = probe(transport, machine, ours_here)
    lacking = [finding for finding in findings(found, machine, ours_here) if finding.what in ("python", "packages")]
    if any(not finding.ok for finding in lacking):
        if own_python(machine):
            refuse(transport.worker, lacking, named=True)  # an environment of the user's own is theirs to change
        yield from make_environment(transport, machine, found, ours_here)
        found = probe(transport, machine, ours_here)
    else:
        yield "the environment is complete"
    looked_at = findings(found, machine, ours_here)
    refuse(transport.worker, looked_at, named=True)
    yield from play_rehearsal(transport, machine, found, ours_here, game)
    yield from (f"note: {finding.text}; {finding.remedy}" for finding in looked_at if not finding.ok)
    yield f"ready: {', '.join(seat.name for seat in seats(found, machine))}"


def send_code(transport: Transport, machine: WorkerSettings, ours_here: Ours, root: Path) -> int:
    """Make our release there; returns how many bytes were sent."""
    archive = f".remote/{ours_here.code_hash}.tar.gz"
    packed = pack(root, ours_here.worker_class)
    transport.put(packed, archive)
    call(
        transport,
        "unpack",
        {"archive": archive, "hash": ours_here.code_hash, "extra": ours_here.extra},
        python=machine.python,
        seconds=60.0,
    )
    return len(packed)


def make_environment(transport: Transport, machine: WorkerSettings, found: Probe, ours_here: Ours) -> Iterator[str]:
    """Install the packages there, as ``make setup`` does here.

    Raises:
        RemoteFailure: it failed; the text has the last lines of what was said.
    """
    folder = found.folder_of(ours_here.code_hash)
    transport.remove(f".venv/installed-{REQUIREMENTS}")  # which says that they are installed; they are not
    argv = ["sh", f"{folder}/scripts/setup.sh", REQUIREMENTS]
    env = {**machine.env, "KEIMA_VENV": f"{found.root}/.venv"}
    yield f"makes the environment {found.root}/.venv, which takes minutes; see {found.root}/{JOB_LOG}"
    if not found.gpus and "TORCH_INDEX" not in machine.env:
        yield f"it has no GPU: with `env: {{TORCH_INDEX: {CPU_TORCH}}}` in the config, torch is a tenth of the size"
    yield from long_step(transport, JOB, argv, env, "making the environment")


def play_rehearsal(transport: Transport, machine: WorkerSettings, found: Probe, ours_here: Ours, game: str) -> Iterator[str]:
    """Have it play once with this code, which shows that packages and GPU work, and compiles the search for this machine.

    Raises:
        RemoteFailure: it failed; the text has the last lines of what was said.
    """
    folder, seat = found.folder_of(ours_here.code_hash), seats(found, machine)[0]
    assert found.python is not None
    place = f"{REHEARSAL}-{ours_here.code_hash}-{game}"
    if look(transport, place).code == 0:
        return
    yield "plays a rehearsal; where it has never played, this compiles the search, in a minute or two"
    argv = [found.python.path, f"{folder}/start_worker.py", "--rehearse", game]
    argv += [] if seat.gpu is None else ["--gpu", str(seat.gpu)]
    yield from long_step(transport, place, argv, environment(seat, machine), "the rehearsal")


def long_step(transport: Transport, place: str, argv: list[str], env: dict[str, str], what: str) -> Iterator[str]:
    """Run a long command there, or go on with one that runs, and tell what it says until it has ended well.

    Raises:
        RemoteFailure: it has not.
    """
    read = understood(transport, Tail, call(transport, "tail", {"log": JOB_LOG, "lines": 0})).end
    request = {"place": place, "argv": ["sh", "-c", WITH_EXIT_CODE, "sh", place, *argv], "env": env, "log": JOB_LOG}
    begun = understood(transport, Started, call(transport, "start", request, private=bool(env)))
    if begun.already:
        yield "an earlier bootstrap is still at it"
    yield from follow(transport, place, read, what)


def look(transport: Transport, place: str) -> Alive:
    """How the long command at ``place`` is doing."""
    return understood(transport, Alive, call(transport, "alive", {"place": place}))


def follow(transport: Transport, place: str, read: int, what: str) -> Iterator[str]:
    """What the long step says from byte ``read`` of its log on, until it has ended well.

    Raises:
        RemoteFailure: it has not.
    """
    said: list[str] = []
    began = told = time.monotonic()
    while True:
        state = look(transport, place)
        new = understood(transport, Tail, call(transport, "tail", {"log": JOB_LOG, "lines": 200, "offset": read}))
        read = new.end
        lines = [printable(line) for line in new.text.splitlines() if line.strip()]
        said = (said + lines)[-8:]
        yield from lines
        now = time.monotonic()
        told = now if lines else told
        if not state.running:
            break
        if now - began > JOB_SECONDS:
            raise RemoteFailure(transport.worker, f"{what} has not ended after {JOB_SECONDS / 3600:.0f} hours", f"see {JOB_LOG} there")
        if now - told >= STILL_SECONDS:
            told = now
            yield f"still at it, after {(now - began) / 60:.0f} min"
        yield ""
    if state.code is None:
        raise RemoteFailure(transport.worker, f"{what} was cut off", remedy_bootstrap(transport.worker))
    if state.code:
        text = f"{what} failed: {' / '.join(said) or f'exit code {state.code}'}"
        raise RemoteFailure(transport.worker, text, f"put that right there, then {remedy_bootstrap(transport.worker)}")
