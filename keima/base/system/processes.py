"""A fork server: child processes start with all imports done and exit with their parent.

A server that has imported what they need forks each of them: a process starts in milliseconds instead of seconds, and
they share the memory of all code. The server imports in the background, so a program that calls ``prepare_fork_server``
first loads PyTorch in the same time as the server does. A program has one server; what it imports is a module that
imports under ``shield_fork_server`` (keima/cluster/local/preload.py, keima/play/arena/preload.py).

This file is imported before everything that takes long to import: it needs only Python's standard library.
"""

import ctypes
import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection, forkserver
from multiprocessing.process import BaseProcess
from typing import Any, TypeAlias

from keima.paths import with_code_on_path

Process: TypeAlias = BaseProcess
Connection: TypeAlias = connection.Connection

PR_SET_PDEATHSIG = 1
BLOCKED = (signal.SIGHUP, signal.SIGTERM)  # by the server
STARTER = "KEIMA_FORK_SERVER_STARTER"  # in the server's environment: the id of the process that started it


def prepare_fork_server(preload: str) -> None:
    """Start the server if it does not run, and return at once: it imports while the caller does something else.

    Args:
        preload: the module that it imports.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload([preload])
    # One thread for numpy's OpenBLAS, because a process with several threads must not be forked.
    given = {"OPENBLAS_NUM_THREADS": "1", STARTER: str(os.getpid())}
    with use_environment(with_code_on_path({**os.environ, **given})):
        forkserver.ensure_running()


def open_pipe() -> tuple[Connection, Connection]:
    """Return a pipe for objects: its reading end, and its writing end, which may be passed to a process."""
    return multiprocessing.Pipe(duplex=False)


@contextmanager
def shield_fork_server() -> Iterator[None]:
    """Prepare the server, in the module that it imports, for imports within this context: it survives what ends its
    processes, and exits with its parent.

    A closed terminal and the end of a system service signal every process at once. The server must outlive its
    processes, whose exit codes it hands on. multiprocessing has it ignore Ctrl-C too, but only after these imports.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    starter = os.environ.pop(STARTER, None)
    die_with_starter(signal.SIGKILL, starter=int(starter) if starter else None)
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, handler)  # its processes have this one


def start_process(
    target: Callable[..., None],
    arguments: Sequence[Any],
    *,
    preload: str,
    name: str,
    by: signal.Signals = signal.SIGTERM,
) -> Process:
    """Start a process that calls ``target(*arguments)`` in this process's environment and folder.

    Args:
        target: what it calls.
        arguments: of the target.
        preload: what the server imports if it does not run yet.
        name: of the process.
        by: the signal that the system sends it when this process ends, however it does (Linux; elsewhere it must
            notice by itself).
    """
    prepare_fork_server(preload)
    process = multiprocessing.get_context("forkserver").Process(
        target=_run_child, args=(dict(os.environ), by, target, tuple(arguments)), name=name, daemon=True
    )
    with hide_main_program():
        process.start()
    return process


@contextmanager
def hide_main_program() -> Iterator[None]:
    """Keep new processes in the block from importing the main program, as they would by default.

    So they start sooner, and a program need not guard itself against being run again in each of its workers.
    """
    program = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = program


@contextmanager
def use_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Use ``variables`` as the environment within the block."""
    earlier = dict(os.environ)
    _set_environment(variables)
    try:
        yield
    finally:
        _set_environment(earlier)


def die_with_starter(by: signal.Signals, *, starter: int | None = None) -> None:
    """Have the system send this process a signal when the process that forked it dies (Linux).

    Args:
        starter: the id of that process; where it has died already, this one ends at once.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, by, 0, 0, 0)
    if starter is not None and os.getppid() != starter:
        os._exit(1)


def end_program(program: "subprocess.Popen[bytes]", seconds: float) -> None:
    """Ask a program that was started to end, and kill it if it has not after so many seconds."""
    program.terminate()
    wait_or_kill(program, seconds)
    if program.stdin:
        program.stdin.close()


def wait_or_kill(program: "subprocess.Popen[bytes]", seconds: float) -> None:
    """Wait for a program to end, and kill it if it has not after so many seconds."""
    try:
        program.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()


def _set_environment(variables: Mapping[str, str]) -> None:
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables)


def _run_child(
    variables: Mapping[str, str], by: signal.Signals, target: Callable[..., None], arguments: Sequence[Any]
) -> None:
    _set_environment(variables)
    _die_with_parent(by)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED)  # which the server does: one that has come meanwhile counts
    target(*arguments)


def _die_with_parent(by: signal.Signals) -> None:
    """Have the system send this process a signal when the server dies, or the process that asked the server for it."""
    parent = multiprocessing.parent_process()
    assert parent
    die_with_starter(by)
    try:
        # The sentinel is a pipe whose other end that process holds open: its end makes the pipe readable.
        fcntl.fcntl(parent.sentinel, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(parent.sentinel, fcntl.F_SETSIG, by)
        fcntl.fcntl(parent.sentinel, fcntl.F_SETFL, os.O_ASYNC)
    except (OSError, AttributeError):
        return
    if not parent.is_alive():  # it died before the request
        raise SystemExit(1)
