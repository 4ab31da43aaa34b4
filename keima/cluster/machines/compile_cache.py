"""Compiled code for machines with the same processor, which then need not compile it again.

It is compiled here and goes to workers, never the other way: loading it is running it.
"""

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from keima.base.system.threads import new_lock
from keima.cluster.agent.commands import Probe
from keima.cluster.agent.inspection import processor_name
from keima.compilation.sources import cache_folder
from keima.paths import CACHE, PACKAGE, program_of, with_code_on_path

DEFAULT = "~/.cache/keima"  # where compiled code is stored without KEIMA_CACHE

_lock, _compiling = new_lock(), dict[str, "subprocess.Popen[bytes]"]()  # by game, those that have ended included


def can_use_cache(probe: Probe, *, version: Sequence[int] = (sys.version_info.major, sys.version_info.minor)) -> bool:
    """Return whether the machine can use what was compiled here: its processor and its Python are the same."""
    return (
        bool(probe.processor)
        and probe.processor == processor_name()
        and probe.python is not None
        and tuple(probe.python.version[:2]) == tuple(version[:2])
    )


def compile_here(game: str) -> Iterator[str]:
    """Compile what a worker needs for a game, once for all threads; yield an empty line when it is time to wait.

    A main node that only coordinates has compiled none of it. Where this fails, the workers compile it themselves.
    """
    nothing = subprocess.DEVNULL
    with _lock:
        if game not in _compiling:
            command = [*program_of("keima"), "worker", "--test-games", game]
            environment = with_code_on_path({**os.environ, "KEIMA_CACHE": str(CACHE)})  # which is packed
            _compiling[game] = subprocess.Popen(  # Ctrl-C does not reach it: what it has compiled is of use later
                command, env=environment, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True
            )
    while _compiling[game].poll() is None:
        yield ""


def pack_cache(package: Path = PACKAGE) -> bytes:
    """Return everything that has been compiled from the present sources, as a tar.gz; empty if there is nothing."""
    folders = [cache_folder(path) for path in sorted(package.rglob("*.py"))]
    present = [folder for folder in folders if folder.is_dir()]
    if not present:
        return b""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as tar:
        for folder in present:
            for file in sorted(folder.glob("*.nb[ci]")):
                tar.add(file, f"{folder.name}/{file.name}", filter=_without_owner)
    return packed.getvalue()


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o600
    return member
