#!/usr/bin/env python3
"""Play games in one worker folder: the program of a worker machine.

The main node starts it over SSH, one per GPU (or one per core of a machine without GPUs), sends models and fetches
games. Start it by hand to see what a worker does:

    keima worker --folder workers/worker1 --gpu 0

It watches the folder's inbox for its assignment, puts finished games into its outbox, and exits by itself if no Coach
has asked for games for a while. On Ctrl-C or kill it hands over its finished games. A second Ctrl-C ends it at once.
"""

if __name__ == "__main__":
    from keima.base.system.signals import exit_quietly_on_interrupt

    exit_quietly_on_interrupt()  # before the imports, which take seconds

import argparse
import io
import logging
import os
import platform
import signal
import sys
from collections.abc import Sequence
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import FrameType

from keima.base.system.command_line import CommandLine
from keima.base.system.confinement import confine_process
from keima.base.system.logs import set_log_handler
from keima.base.system.signals import discard_output_of_lost_terminal, ends_with_terminal
from keima.cluster.agent.process import CommandFailed, claim_place, hold_lock, release_place
from keima.config.descriptions import describe_setting
from keima.config.flags import whole
from keima.config.own_modules import PACKAGE_FOLDERS
from keima.games import GAMES
from keima.paths import CACHE, PACKAGE, SOURCE, workspace
from keima.worker import WORKER_CLASS

log = logging.getLogger("start_worker")

LOG_BYTES = 4 * 2**20  # and the same for the rotated file
ALREADY_RUNNING = 3
CONFINED = "confined"  # the folder in the cache that is the cache of all confined workers
SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "etc", "proc", "sys", "opt", "nix/store", "gnu/store")
GPU_DEVICES = ("nvidia*", "nvhost*", "nvmap", "dxg", "kfd", "dri", "shm")  # in /dev; libraries share memory in the last
# The environment of a confined worker: what these programs read. The rest may hold passwords.
KEPT_VARIABLES = ("HOME", "LANG", "LOGNAME", "PATH", "TERM", "TZ", "USER", "VIRTUAL_ENV")
KEPT_PREFIXES = (
    *("CONDA_PREFIX", "CUDA", "GPU_", "HIP_", "KMP_", "LC_", "LD_LIBRARY_PATH", "MKL_", "NUMBA_", "NVIDIA_", "OMP_"),
    *("OPENBLAS_", "PYTHON", "PYTORCH_", "ROCR_", "TORCH_"),
)
ENDED_SECONDS = (
    120.0  # for the lock of a process to be free that a scheduler has ended; NFS needs 90 if its machine died
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code: 0, or 2 when something is wrong that can be fixed, or 3 if the folder
    has its worker.
    """
    arguments = parse(argv)
    folder = arguments.folder
    if arguments.confined and CACHE.name != CONFINED:
        restart_with_own_cache()
    start_log(arguments.log)
    if arguments.test_games:
        restrict_to_device(arguments.gpu)
        log.info("test games: loading PyTorch, and compiling what is not compiled yet")
        try:
            play_test_games(arguments.test_games, device=device_name(arguments.gpu))
        except ValueError as error:
            log.error("the test games have failed: %s", error)
            return 2
        return 0
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if arguments.scheduled:
            forget_ended_process(folder)
        other = claim_place(folder, sys.orig_argv)
    except (OSError, CommandFailed) as error:
        log.error("the worker cannot start: %s", error)
        return 2
    if other is not None:
        log.error("%s already has a worker: process %d", folder, other)
        return ALREADY_RUNNING
    assigned = arguments.scheduled and bool(os.environ.get("CUDA_VISIBLE_DEVICES"))
    if not assigned:
        restrict_to_device(arguments.gpu)
    log.info(
        "worker %s: process %d, Python %s, %s",
        folder.name,
        os.getpid(),
        platform.python_version(),
        "on the GPU that the scheduler has assigned" if assigned else device_text(arguments.gpu),
    )
    if arguments.confined:
        own_class = arguments.worker_class != WORKER_CLASS
        confine(folder, gpu=assigned or arguments.gpu is not None, log_file=arguments.log, own_class=own_class)
    try:
        play_in_worker_folder(folder, arguments.worker_class, device="cuda" if assigned else device_name(arguments.gpu))
    except Exception:
        log.exception("worker %s ends", folder.name)
        return 1
    finally:
        release_place(folder)
    log.info("worker %s has handed over its games and ends", folder.name)
    return 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = CommandLine(__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--folder", type=Path, help="the worker folder; created if missing")
    test_games = "play a few games of GAME instead, to test and compile everything"
    what.add_argument("--test-games", metavar="GAME", choices=GAMES, help=test_games)
    # Scripts of before still have the flag by this name.
    what.add_argument("--rehearse", dest="test_games", choices=GAMES, help=argparse.SUPPRESS)
    parser.add_argument(
        "--gpu",
        type=whole(0),
        metavar="N",
        help="play on this GPU, as numbered by nvidia-smi, and never on the CPU instead (default: on one core of the "
        "CPU)",
    )
    parser.add_argument(
        "--worker-class",
        default=WORKER_CLASS,
        metavar="MODULE.CLASS",
        help=f"{describe_setting('distributed.worker_class')} (default: {WORKER_CLASS})",
    )
    scheduled = "run as a job of a scheduler such as Slurm: on the GPU that it assigned, in place of an ended job"
    parser.add_argument("--scheduled", action="store_true", help=scheduled)
    confined = "without network, and without write access outside the worker's folder and a cache of its own; the log "
    confined += "says what this system can enforce"
    parser.add_argument("--confined", action="store_true", help=confined)
    parser.add_argument("--log", type=Path, metavar="FILE", help="log file (default: the terminal)")
    arguments = parser.parse_args(argv)
    if arguments.confined and not arguments.folder:
        parser.error("--confined needs --folder")
    return arguments


def forget_ended_process(folder: Path) -> None:
    """Remove the record of the folder's last process: the scheduler has ended it, on whatever machine it ran.

    Raises:
        CommandFailed: it has not ended, as it holds the worker's lock.
    """
    try:
        with hold_lock(folder / "worker.lock", ENDED_SECONDS):
            (folder / "process.json").unlink(missing_ok=True)
    except CommandFailed as error:
        text = (
            f"another worker still holds the lock of {folder} after {ENDED_SECONDS:.0f} s, perhaps on another machine"
        )
        raise CommandFailed(text, "busy") from error


def restart_with_own_cache() -> None:
    """Start this program again in its process, with a cache for confined workers and an environment without secrets.

    Compiled code is loaded as numba stores it, by unpickling, which runs what the file says. So a program that is not
    confined must never read what a confined one could write.
    """
    kept = {name: text for name, text in os.environ.items() if name in KEPT_VARIABLES or name.startswith(KEPT_PREFIXES)}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**kept, "KEIMA_CACHE": str(CACHE / CONFINED)})


def confine(folder: Path, *, gpu: bool, log_file: Path | None, own_class: bool) -> None:
    """Confine this process to the worker's folder, the cache and the code that it runs, and log what holds.

    Args:
        folder: the worker's; temporary files go there too.
        gpu: whether it uses one.
        log_file: that it writes.
        own_class: whether the worker's class is in the workspace.
    """
    code = [*find_code(), *([workspace()] if own_class else [])]
    temporary = folder.resolve() / "tmp"
    for place in (temporary, CACHE):
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.environ |= {"TMPDIR": str(temporary), "HOME": str(CACHE)}  # where libraries put their files and caches
    devices = [path for name in GPU_DEVICES for path in Path("/dev").glob(name)] if gpu else []
    held = confine_process(writable=[folder, CACHE, *([log_file] if log_file else []), *devices], readable=code)
    log.info("confined: %s", held.describe())
    for sentence in held.missing:
        log.warning("%s", sentence)


def find_code() -> list[Path]:
    """Return where the system, this interpreter, its packages and libraries, and Keima's code are.

    A folder with the user's home in it is left out, and so is the checkout, for its runs and settings.
    """
    home = Path.home().resolve()
    named = os.pathsep.join(os.environ.get(name, "") for name in ("PYTHONPATH", "LD_LIBRARY_PATH")).split(os.pathsep)
    packages = [path for path in sys.path if Path(path).name in PACKAGE_FOLDERS]
    folders = [Path(path).resolve() for path in [*named, *packages] if path]
    return [
        *(Path("/", name) for name in SYSTEM),
        *map(Path, {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}),
        PACKAGE,
        *(folder for folder in folders if folder != SOURCE and folder not in (home, *home.parents)),
    ]


def restrict_to_device(gpu: int | None) -> None:
    """Show this process its GPU alone, or none; torch, which is imported later, reads this once."""
    if gpu is None:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    else:
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu)


def device_text(gpu: int | None) -> str:
    """Return the device in words."""
    return "on one core" if gpu is None else f"on GPU {gpu}"


def device_name(gpu: int | None) -> str:
    """Return the device of the networks, as ``Evaluator`` has it."""
    return "cpu" if gpu is None else "cuda"


def play_in_worker_folder(folder: Path, worker_class: str, *, device: str) -> None:
    """Be the folder's worker until it ends; without its device it plays nothing, and says in its heartbeat why.

    Raises:
        RuntimeError: the folder was deleted while this process started, and has another worker now.
    """
    signal.signal(signal.SIGINT, end_gracefully)
    if ends_with_terminal():
        signal.signal(signal.SIGHUP, end_gracefully)
    # Torch reads the environment now.
    from keima.networks.inference.evaluator import use_threads
    from keima.worker.worker_class import load_worker_class

    if device == "cpu":
        use_threads(1)  # one thread per process scales better than several threads in one
    kind = load_worker_class(worker_class)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    other = claim_place(folder, sys.orig_argv)  # again: the imports take seconds, in which the folder may be deleted
    if other is not None:
        raise RuntimeError(f"{folder} was deleted and created again, and has another worker: process {other}")
    worker = kind(folder)
    worker.device = device
    worker.run()


def play_test_games(name: str, *, device: str) -> None:
    """Play with an untrained network, with itself and against a random player: that uses and compiles everything that a
    worker needs.

    Raises:
        ValueError: there is no such device; the text says what is missing.
    """
    from keima.config.sections.network import NetworkSettings
    from keima.config.sections.search import SearchSettings
    from keima.evaluation.match import RandomPlayer, SearchPlayer, play_match
    from keima.games import load_game
    from keima.networks.inference.evaluator import Evaluator
    from keima.networks.network import build_network
    from keima.search.move_search import Search
    from keima.self_play.parallel_games import SelfPlay

    game = load_game(name)
    network = build_network(game, **NetworkSettings(blocks=1, channels=8).arguments())
    evaluator = Evaluator(network.eval(), game, device=device, max_batch=2)
    settings = SearchSettings(num_simulations=4, cheap_simulations=2)
    self_play = SelfPlay(game, evaluator, settings, parallel_games=2)
    self_play.begin([1, 2])
    while self_play.num_playing:
        self_play.advance()
    if game.num_players > 1:
        player = SearchPlayer(Search(game, evaluator, settings, num_simulations=4, num_trees=2))
        play_match(game, player, RandomPlayer(game, 1), pairs=1, opening_plies=2, seed=1)
    log.info("test games of %s have been played with %s", name, evaluator.describe())


def end_gracefully(number: int, frame: FrameType | None) -> None:
    """End as on SIGTERM, whose handler the worker sets; the second time at once, except for a closed terminal."""
    signal.signal(number, signal.SIG_IGN if number == signal.SIGHUP else signal.SIG_DFL)
    discard_output_of_lost_terminal()
    signal.raise_signal(signal.SIGTERM)


def start_log(path: Path | None) -> None:
    """Send log lines and printed text to ``path``, at most twice ``LOG_BYTES``; or to the terminal."""
    if path is None:
        set_log_handler(logging.StreamHandler())
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    set_log_handler(LogFile(path, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8"))
    logging.captureWarnings(True)
    sys.stdout, sys.stderr = LoggedOutput(logging.INFO), LoggedOutput(logging.WARNING)


class LogFile(RotatingFileHandler):
    """A log file that is rotated when it is full; what libraries write to standard error goes to the new one too.

    A confined worker may write the file, but no other in its folder: then it is emptied instead.
    """

    def doRollover(self) -> None:  # noqa: N802 - logging's name
        """Rotate the file."""
        try:
            super().doRollover()
        except PermissionError:
            self.stream = self._open()
            self.stream.truncate(0)
        if self.stream is None:
            return
        for descriptor in (1, 2):
            os.dup2(self.stream.fileno(), descriptor)


class LoggedOutput(io.TextIOBase):
    """A stream whose lines become log lines."""

    def __init__(self, level: int) -> None:
        self._level = level
        self._rest = ""

    def write(self, text: str) -> int:
        """Take text; each complete line is logged."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if line.strip():
                log.log(self._level, "%s", line)
        return len(text)

    def writable(self) -> bool:
        """Return True."""
        return True


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    sys.__stdout__.flush() if sys.__stdout__ else None
    os._exit(code)  # everything is on the disk; a regular exit of torch and the compiler would take seconds
