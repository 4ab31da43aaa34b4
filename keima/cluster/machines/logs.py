"""Copy a machine's logs to this one."""

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from keima.base.files import FileTooLarge
from keima.cluster.machines.bootstrap import JOB_LOG
from keima.cluster.machines.machine import log_name
from keima.cluster.ssh.errors import RemoteFailure
from keima.cluster.ssh.transport import Transport

FOLDER, BOOTSTRAP = JOB_LOG.split("/")
TAIL_SECONDS = 60.0


@dataclass(frozen=True)
class GatheredLogs:
    """What was copied: the number of files, their bytes, and the names of those of which only the end was."""

    files: int
    size: int
    cut: tuple[str, ...]


def copy_logs(transport: Transport, worker: str, folder: Path, *, most: int, processes: str) -> GatheredLogs:
    """Copy the logs of a machine's workers, and of its bootstrap, into a new folder.

    Args:
        transport: to the machine.
        worker: the machine's name; the new folder, within ``folder``, is called so.
        folder: is made if it is missing.
        most: bytes of one log; of a larger one only the end is copied.
        processes: a pattern of the names of the workers whose logs are meant.

    Raises:
        FileExistsError: there is such a folder already; nothing in it is changed.
        ClusterError: a log cannot be read there.
        OSError: a log cannot be written here.
    """
    place, unfinished = folder / worker, folder / f".{worker}.part"  # no worker's name begins with a dot
    if place.exists():
        raise FileExistsError(f"{place} is there already; move it away, or name another folder")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    wanted = _log_filter(processes)
    sizes, cut = list[int](), list[str]()
    for entry in transport.list_files(FOLDER):
        if wanted(entry.name):
            data, whole = _read_log_end(transport, f"{FOLDER}/{entry.name}", most)
            (unfinished / entry.name).write_bytes(data)
            sizes.append(len(data))
            cut += [] if whole else [entry.name]
    unfinished.rename(place)
    return GatheredLogs(files=len(sizes), size=sum(sizes), cut=tuple(cut))


def _log_filter(processes: str) -> Callable[[str], bool]:
    """Return whether a file is one of Keima's logs. Such names are safe here too, whatever files the machine has."""
    worker_log = log_name("worker").removeprefix(f"{FOLDER}/")
    before, after = map(re.escape, worker_log.rsplit("worker", 1))
    pattern = re.compile(rf"(?:{before}(?:{processes}){after}|{re.escape(BOOTSTRAP)})(?:\.[0-9]{{1,3}})?")
    return lambda name: pattern.fullmatch(name) is not None


def _read_log_end(transport: Transport, name: str, most: int) -> tuple[bytes, bool]:
    """Return a log's content, or its last ``most`` bytes; and whether that is all."""
    try:
        return transport.get(name, most), True
    except FileTooLarge:
        done = transport.run(["tail", "-c", str(most), name], seconds=TAIL_SECONDS)
    if done.code:
        raise RemoteFailure(transport.worker, f"the end of {name} cannot be read: {done.stderr.decode()[:200]}")
    return done.stdout[-most:], False
