"""Programs that run at low priority, so that they do not slow a training run on the same machine.

Where autogroups are on, as on most desktops and servers, Linux divides the processor among sessions first (sched(7)): a
process with the lowest priority in a terminal of its own still gets as much as a whole training run in another one. A
session's priority can be lowered as a whole, but the terminal's may hold the training run itself. So the program
continues in a child that has a session of its own, and the original process stands in for it: it passes signals on, and
exits as the child exits.

Imports only the standard library.
"""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from keima.base.system.processes import die_with_starter

LOWEST_PRIORITY = 19
WORKER_PRIORITY = 5  # if cores are scarce, the learner comes first, because all workers wait for it in the end
AUTOGROUPS, OWN_GROUP = Path("/proc/sys/kernel/sched_autogroup_enabled"), Path("/proc/self/autogroup")
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_at_low_priority(level: int = LOWEST_PRIORITY) -> None:
    """Continue at a lower priority, if necessary in a child of this process. Call it before any thread starts.

    Args:
        level: from 1 to 19, the lowest. Against one other process that wants a core, 5 gets a quarter of it, 10 a
            tenth, and 19 a seventieth.
    """
    if not has_session_scheduling():
        os.nice(level)
        return
    sys.stdout.flush()
    sys.stderr.flush()
    starter = os.getpid()
    waited = {signal.SIGCHLD, *(number for number in PASSED_ON if signal.getsignal(number) != signal.SIG_IGN)}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, waited)  # none is lost between the fork and sigwait
    child = os.fork()
    if child:
        _relay_to_child(child, waited)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    die_with_starter(signal.SIGTERM, starter=starter)
    begin_session(level)


def begin_session(level: int = LOWEST_PRIORITY) -> None:
    """Give this process, which is a child of the program's, a session of its own with a lower priority.

    Ctrl-C and a closed terminal no longer reach it; see ``die_with_starter`` for its end.

    Args:
        level: see ``run_at_low_priority``.
    """
    with suppress(PermissionError):  # it has one
        os.setsid()
    os.nice(level)
    with suppress(OSError):
        OWN_GROUP.write_text(f"{level}\n")


def has_session_scheduling() -> bool:
    """Return whether the system divides the processor among sessions first."""
    try:
        return AUTOGROUPS.read_text().strip() == "1" and OWN_GROUP.exists()
    except OSError:
        return False


def _relay_to_child(child: int, waited: set[signal.Signals]) -> NoReturn:
    """Pass the signals that are waited for on to the child, and exit as it exits. They are blocked."""
    ended, status = 0, 0
    while not ended:
        number = signal.sigwait(waited)
        if number != signal.SIGCHLD:
            with suppress(ProcessLookupError):
                os.kill(child, number)
        ended, status = os.waitpid(child, os.WNOHANG)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:  # by a signal
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [-code])
        os.kill(os.getpid(), -code)
    os._exit(max(code, 0))
