"""Turn a bare machine into a worker: Keima's code under the name of its hash, an environment with the packages, and a
test game.

Every step first checks whether it has been done. Long steps run on the machine by themselves: after an interruption,
the next bootstrap continues, and may find the long step finished.
"""

import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from keima.base.reports.formats import format_duration
from keima.cluster.agent.call import call_remote
from keima.cluster.agent.code import PROGRAM
from keima.cluster.agent.commands import (
    ALIVE,
    START,
    TAIL,
    UNPACK,
    UNPACK_CACHE,
    Alive,
    AliveRequest,
    Probe,
    StartRequest,
    TailRequest,
    UnpackCacheRequest,
    UnpackRequest,
    printable_start,
)
from keima.cluster.agent.packing import install_remote_program
from keima.cluster.machines import wheels
from keima.cluster.machines.check import Finding, refuse_unfit, run_checks, worker_slots
from keima.cluster.machines.install_errors import explain_install_error
from keima.cluster.machines.machine import (
    bootstrap_command,
    own_python,
    probe_machine,
    release_folder,
    slot_variables,
)
from keima.cluster.machines.release import WorkerRequirements, pack_code, wheel_name, worker_requirements
from keima.cluster.machines.wheels import Wheel
from keima.cluster.ssh.errors import Refused, RemoteFailure
from keima.cluster.ssh.transport import Transport
from keima.config.sections.workers import PipSettings, WorkerSettings
from keima.paths import SOURCE

JOBS = ".remote/jobs"  # the places of the long steps
TEST_GAME_PLACE = f"{JOBS}/test-games"
TEST_GAME = "tic_tac_toe"
MAKE_ENVIRONMENT = "keima/cluster/agent/make_environment.sh"  # in a release
JOB_LOG = "logs/bootstrap.log"
# Runs a command at a place and writes its exit code there.
WITH_EXIT_CODE = (
    'place=$1; shift; code=0; "$@" || code=$?; echo $code >"$place/exit.part"; mv "$place/exit.part" "$place/exit"'
)
POLL_SECONDS = 1.0
STILL_SECONDS = 30.0  # between two signs of life
JOB_SECONDS = 2 * 3600.0
NOT_FIXABLE = ("folder", "disk", "gpu", "python")  # findings that bootstrap cannot fix
NO_PIP_SETTINGS = PipSettings()
LARGE_WHEEL_BYTES = 20 * 10**6  # bytes; the transfer of such a wheel has a line of its own
REMEMBERED = 60  # lines of a step's output, from which its failure is explained
CPU_ENVIRONMENT = 2 * 10**9  # bytes of disk during the installation: 1.2 GB measured, and the downloaded files
CUDA_ENVIRONMENT = 8 * 10**9  # with CUDA's libraries: 5 GB, and 3 GB of downloads
CPU_TORCH = "https://download.pytorch.org/whl/cpu"


def bootstrap_machine(
    transport: Transport,
    machine: WorkerSettings,
    *,
    report: Callable[[str], None],
    required: WorkerRequirements | None = None,
    pip: PipSettings = NO_PIP_SETTINGS,
    game: str = TEST_GAME,
    root: Path = SOURCE,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Prepare a machine to play, and report each step; a machine that is ready is only checked.

    Args:
        transport: to the machine.
        machine: the machine's settings.
        report: called with each line.
        required: the code and packages that it must have.
        pip: where it gets the packages.
        game: the game that the test plays.
        root: the folder of the package that is sent.
        sleep: waits for a number of seconds.

    Raises:
        Refused: it lacks something that cannot be installed from here; the text says what, and the remedy.
        RemoteFailure: a step failed there.
        Unreachable: the connection was lost; a long step continues there.
    """
    for line in bootstrap_steps(transport, machine, required=required, pip=pip, game=game, root=root):
        if line:
            report(line)
        else:
            sleep(POLL_SECONDS)


def bootstrap_steps(
    transport: Transport,
    machine: WorkerSettings,
    *,
    required: WorkerRequirements | None = None,
    pip: PipSettings = NO_PIP_SETTINGS,
    game: str = TEST_GAME,
    root: Path = SOURCE,
) -> Iterator[str]:
    """Prepare a machine step by step: yield lines to report, and an empty line when it is time to wait a second."""
    required = required or worker_requirements(root=root)
    install_remote_program(transport)
    found = probe_machine(transport, machine, required)
    gpus = f"{len(found.gpus)} {'GPU' if len(found.gpus) == 1 else 'GPUs'}" if found.gpus else "no GPU"
    cores = f"{found.cpus} {'core' if found.cpus == 1 else 'cores'}"
    yield f"found {found.platform}, {cores}, {gpus}, {found.disk_free / 1e9:.0f} GB free"
    checked = run_checks(found, machine, required)
    refuse_unfit(transport.worker, (each for each in checked if each.what in NOT_FIXABLE), named=True)
    lacking = [each for each in checked if each.what == "packages" and not each.ok]
    if lacking and own_python(machine) and found.python and found.python.environment:
        refuse_unfit(transport.worker, lacking, named=True)  # the user's own environment is theirs to change
    sent = choose_wheels(transport, found, pip, required) if lacking else []
    if lacking:
        refuse_unfit(transport.worker, [check_disk_space(found, machine, pip, sent)], named=True)
    if found.folder_of(required.code_hash) is None:
        sent_bytes = send_code(transport, machine, required, root)
        yield f"sending the code, {sent_bytes / 1000:.0f} kB, to {release_folder(required.code_hash)}"
        found = probe_machine(transport, machine, required)
    if lacking:
        yield from make_environment(transport, machine, found, required, pip, sent)
        found = probe_machine(transport, machine, required)
    else:
        yield "the environment is complete"
    checked = run_checks(found, machine, required)
    refuse_unfit(transport.worker, checked, named=True)
    yield from play_test_game(transport, machine, found, required, game)
    yield from (f"note: {finding.text}; {finding.remedy}" for finding in checked if not finding.ok)
    yield f"ready: {', '.join(slot.name for slot in worker_slots(found, machine))}"


def send_code(transport: Transport, machine: WorkerSettings, required: WorkerRequirements, root: Path) -> int:
    """Create our release on the machine; return how many bytes were sent."""
    archive = f".remote/{wheel_name(required.code_hash)}"
    packed = pack_code(required, root)
    transport.put(packed, archive)
    request = UnpackRequest(archive=archive, hash=required.code_hash, extra=required.extra)
    call_remote(transport, UNPACK, request, python=machine.python, seconds=60.0)
    return len(packed)


def choose_wheels(transport: Transport, found: Probe, pip: PipSettings, required: WorkerRequirements) -> list[Wheel]:
    """Return the wheels to send; none if the machine gets the packages from an index.

    Raises:
        Refused: some are missing.
    """
    if not pip.wheels:
        return []
    assert found.python is not None
    try:
        return wheels.fitting_wheels(Path(pip.wheels), required.pins, found.python)
    except wheels.NoWheels as error:
        what, _, remedy = str(error).partition("; ")
        raise Refused(transport.worker, what, remedy) from error


def check_disk_space(found: Probe, machine: WorkerSettings, pip: PipSettings, sent: list[Wheel]) -> Finding:
    """Return whether the disk has room for the packages."""
    index = {**pip.variables, **machine.env}.get("TORCH_INDEX", "")
    with_cuda = found.machine == "x86_64" and not index.rstrip("/").endswith("/cpu")
    needed = wheels.installed_size(sent) if sent else CUDA_ENVIRONMENT if with_cuda else CPU_ENVIRONMENT
    text = f"{found.disk_free / 1e9:.1f} GB free"
    if found.disk_free >= needed:
        return Finding("disk", True, False, text)
    smaller = (
        ""
        if sent or found.gpus or index
        else f"; or, as it has no GPU, set `torch_index: {CPU_TORCH}` below `pip:` in the config"
    )
    remedy = f"free space there (see: df -h {found.root}), or choose another `directory`{smaller}"
    return Finding("disk", False, True, f"only {text}, and the packages take up to {needed / 1e9:.1f} GB", remedy)


def make_environment(
    transport: Transport,
    machine: WorkerSettings,
    found: Probe,
    required: WorkerRequirements,
    pip: PipSettings,
    sent: list[Wheel],
) -> Iterator[str]:
    """Install the packages on the machine, as ``make setup`` does here.

    Raises:
        RemoteFailure: it failed; the text has the reason and the remedy.
    """
    folder = found.folder_of(required.code_hash)
    environment, shelf = required.environment_folder, wheels_folder(required)
    yield from send_wheels(transport, sent, shelf)
    listed = f".remote/{environment.rpartition('/')[2]}.txt"
    transport.put("".join(f"{pin}\n" for pin in required.pins).encode(), listed)
    transport.remove(f"{environment}/installed-{Path(listed).name}")  # it says that the packages are installed
    argv = ["sh", f"{folder}/{MAKE_ENVIRONMENT}", listed]
    env = {**pip.variables, **machine.env, "KEIMA_VENV": f"{found.root}/{environment}"}
    env |= {"KEIMA_WHEELS": f"{found.root}/{shelf}"} if sent else {}
    if found.python:
        env["PYTHON"] = found.python.path
    yield f"making the environment {found.root}/{environment}, which takes minutes; see {found.root}/{JOB_LOG}"
    if not sent and not found.gpus and "TORCH_INDEX" not in env:
        yield f"it has no GPU: with `pip: {{torch_index: {CPU_TORCH}}}` in the config, torch is a tenth of the size"
    yield from run_long_step(
        transport,
        environment_job_place(required),
        argv,
        env,
        "making the environment",
        machine=machine,
        required=required,
    )
    for wheel in sent:
        transport.remove(f"{shelf}/{wheel.path.name}")


def environment_job_place(required: WorkerRequirements) -> str:
    """Return the place of the long step that makes the environment; it differs for other requirements."""
    return f"{JOBS}/{required.environment_folder.replace('/', '-')}"


def wheels_folder(required: WorkerRequirements) -> str:
    """Return where wheels are stored until they are installed."""
    return f"{wheels.WHEELS_FOLDER}/{required.environment_folder.rpartition('/')[2]}"


def send_wheels(transport: Transport, sent: list[Wheel], shelf: str) -> Iterator[str]:
    """Send the wheels that are missing there; a large one continues where it was interrupted."""
    there = {entry.name: entry.size for entry in transport.list_files(shelf)}
    new = [wheel for wheel in sent if there.get(wheel.path.name) != wheel.size]
    if new:
        yield f"sending {len(new)} packages, {sum(wheel.size for wheel in new) / 1e6:.0f} MB"
    for wheel in new:
        if wheel.size >= LARGE_WHEEL_BYTES:
            yield f"sending {wheel.path.name}, {wheel.size / 1e6:.0f} MB"
        transport.put(wheel.path.read_bytes(), f"{shelf}/{wheel.path.name}")


def play_test_game(
    transport: Transport, machine: WorkerSettings, found: Probe, required: WorkerRequirements, game: str
) -> Iterator[str]:
    """Play once with this code. That shows that packages and GPU work, and compiles the search for this machine.

    Raises:
        RemoteFailure: it failed; the text has the last lines of its output.
    """
    folder, slot = found.folder_of(required.code_hash), worker_slots(found, machine)[0]
    assert found.python is not None
    place = f"{TEST_GAME_PLACE}-{required.code_hash}-{game}"
    if read_job_status(transport, place, machine).code == 0:
        return
    yield from send_compiled_code(transport, machine, found, compiled_first=game)
    yield "plays test games; first it compiles what is not compiled there yet, which takes minutes"
    argv = [found.python.path, f"{folder}/{PROGRAM}", "worker", "--test-games", game]
    argv += [] if slot.gpu is None else ["--gpu", str(slot.gpu)]
    env = slot_variables(slot, machine)
    yield from run_long_step(transport, place, argv, env, "the test games", machine=machine, required=required)


def send_compiled_code(
    transport: Transport, machine: WorkerSettings, found: Probe, *, compiled_first: str = ""
) -> Iterator[str]:
    """Send the code that has been compiled here, if the machine's processor can run it.

    Args:
        compiled_first: a game; what it needs is compiled here before.
    """
    from keima.cluster.machines import compile_cache  # imported here because it imports the compiler

    if not compile_cache.can_use_cache(found):
        return
    if compiled_first:
        yield "compiles here what is not compiled yet, for all machines with this kind of processor"
        yield from compile_cache.compile_here(compiled_first)
    packed = compile_cache.pack_cache()
    if not packed:
        return
    archive = (
        f".remote/compiled-{secrets.token_hex(4)}.tar.gz"  # a name of its own: another checkout may be doing the same
    )
    transport.put(packed, archive)
    request = UnpackCacheRequest(archive, machine.env.get("KEIMA_CACHE", compile_cache.DEFAULT))
    call_remote(transport, UNPACK_CACHE, request, python=machine.python, seconds=60.0)
    yield f"sent compiled code, {len(packed) / 1e6:.0f} MB: its processor is of the same kind"


def run_long_step(
    transport: Transport,
    place: str,
    argv: list[str],
    env: dict[str, str],
    what: str,
    *,
    machine: WorkerSettings,
    required: WorkerRequirements,
) -> Iterator[str]:
    """Run a long command on the machine, or continue to follow one that runs, and report its output until it succeeds.

    Raises:
        RemoteFailure: it failed.
    """
    python = machine.python
    read = call_remote(transport, TAIL, TailRequest(JOB_LOG, lines=0), python=python).end
    command = ["sh", "-c", WITH_EXIT_CODE, "sh", place, *argv]
    request = StartRequest(place=place, argv=command, env=env, log=JOB_LOG, shared=True)
    if call_remote(transport, START, request, python=python, private=bool(env)).already:
        yield "an earlier bootstrap is still running"
    yield from follow_log(transport, place, read, what, machine=machine, required=required)


def read_job_status(transport: Transport, place: str, machine: WorkerSettings) -> Alive:
    """Return the state of the long command at ``place``."""
    return call_remote(transport, ALIVE, AliveRequest(place), python=machine.python)


def follow_log(
    transport: Transport, place: str, read: int, what: str, *, machine: WorkerSettings, required: WorkerRequirements
) -> Iterator[str]:
    """Report the output of a long step from byte ``read`` of its log on, until it succeeds.

    Raises:
        RemoteFailure: it failed.
    """
    said: list[str] = []
    began = reported = time.monotonic()
    while True:
        state = read_job_status(transport, place, machine)
        new = call_remote(transport, TAIL, TailRequest(JOB_LOG, lines=200, offset=read), python=machine.python)
        read = new.end
        lines = [printable_start(line) for line in new.text.splitlines() if line.strip()]
        said = (said + lines)[-REMEMBERED:]
        yield from lines
        now = time.monotonic()
        reported = now if lines else reported
        if not state.running:
            break
        if now - began > JOB_SECONDS:
            raise RemoteFailure(
                transport.worker, f"{what} has not ended after {JOB_SECONDS / 3600:.0f} hours", f"see {JOB_LOG} there"
            )
        if now - reported >= STILL_SECONDS:
            reported = now
            yield f"still running after {format_duration(now - began)}"
        yield ""
    again = bootstrap_command(required, transport.worker)
    if state.code is None:
        raise RemoteFailure(transport.worker, f"{what} was cut off", again)
    if state.code:
        why, remedy = explain_install_error(said, state.code)
        full_log = f"the full log is {machine.directory}/{JOB_LOG} there"
        raise RemoteFailure(transport.worker, f"{what} failed: {why}", f"{remedy}; then {again}; {full_log}")
