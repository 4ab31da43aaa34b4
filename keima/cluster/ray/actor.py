"""The actor of a slot. It brings our code to its node, and passes calls on to that code.

Ray sends the class itself, since no file of ours need be on the node. So it uses only the standard library.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

UNPACK_SECONDS = 60.0
ATTEMPTS = 10  # while other slots of the node unpack the same release
COMPLETE = ".whole"  # as ``keima.cluster.agent.code`` marks a complete release


class SlotActor:
    """A slot on some node of the cluster.

    Args:
        directory: the folder for everything on the node; ``~`` is the home there.
        program: the name and content of the remote program (``keima/cluster/agent/program.py``).
        release: the hash of our code, and the module of the user's own worker class.
        archive: the wheel with the code.

    Raises:
        RuntimeError: the code could not be unpacked.
        OSError: the folder cannot be written.
    """

    def __init__(self, directory: str, program: tuple[str, bytes], release: tuple[str, str], archive: bytes) -> None:
        os.umask(0o077)
        root = Path(directory).expanduser().absolute()
        code = root / "releases" / release[0]
        self._install(root, *program)
        if not (code / COMPLETE).exists():
            self._unpack(root, program[0], release, archive)
        # Programs that are named without a folder are those of the interpreter that runs Ray.
        os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
        sys.path.insert(0, str(code))
        from keima.cluster.ray.slot import RaySlot

        self._slot = RaySlot(root, program[0])

    def call(self, operation: str, *arguments: Any) -> tuple[str, Any]:
        """Carry out an operation of the slot: see ``RaySlot.call``."""
        return self._slot.call(operation, *arguments)

    def _install(self, root: Path, name: str, content: bytes) -> None:
        path = root / name
        if path.exists():
            return
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        part.write_bytes(content)
        part.replace(path)

    def _unpack(self, root: Path, program: str, release: tuple[str, str], archive: bytes) -> None:
        code_hash, extra = release
        answer: dict[str, Any] = {}
        for _ in range(ATTEMPTS):
            file = root / ".remote" / f"{code_hash}-{os.getpid()}.whl"
            file.write_bytes(archive)
            request = {"archive": str(file), "hash": code_hash, "extra": extra}
            command = [sys.executable, "-I", program, "unpack", "unpack", json.dumps(request)]
            done = subprocess.run(
                command, cwd=root, stdin=subprocess.DEVNULL, capture_output=True, timeout=UNPACK_SECONDS
            )
            said = [
                line for line in done.stdout.decode("utf-8", "replace").splitlines() if line.startswith("@@unpack ")
            ]
            answer = json.loads(said[-1].partition(" ")[2]) if said else {"failed": done.stderr.decode()[-300:]}
            if "ok" in answer:
                return
            file.unlink(missing_ok=True)
            if answer.get("kind") != "busy":
                break
            time.sleep(1.0)
        raise RuntimeError(f"Keima's code cannot be unpacked in {root}: {answer.get('failed')}")
