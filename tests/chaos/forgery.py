"""Damaged and forged files, which the faults put in the place of a worker's own."""

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from tests.chaos.scene import Scene, Sign
from tests.data.forging import pack, put_together, take_apart, unpack
from tests.lab.hosts import Host

FORGED_HEARTBEAT = "forged-heartbeat"
# In place of our program on a machine: what an agent may say after the mark, and whether it then ends.
BROKEN_AGENT = """import os, sys, time
mark = b"@@" + sys.argv[1].encode() + b" "
hello = b'{"program": "' + os.path.basename(sys.argv[0]).encode() + b'"}'
greeting = mark + b"%08x%08x" % (len(hello), 0) + hello
said = {
    "garbage": greeting + os.urandom(5000),
    "half a frame": greeting + mark + b"00000f00000000000[0, {",
    "half a frame and its end": greeting + mark + b"00000f0000000000[0, {",
    "a frame without end": greeting + mark + b"fffffff000000000[",
    "another version": greeting.replace(hello, hello[:-3] + b'x"}'),
    "nothing": b"",
}[KIND]
os.write(1, said)
time.sleep(0 if KIND.endswith("its end") else 600)
"""
BROKEN_KINDS = (
    "garbage",
    "half a frame",
    "half a frame and its end",
    "a frame without end",
    "another version",
    "nothing",
)


def damaged(scene: Scene, data: bytes) -> bytes:
    """Return the data with a few bits flipped or its end missing."""
    if len(data) < 2 or scene.chance.random() < 0.3:
        return data[: scene.chance.randrange(max(1, len(data)))]
    changed = bytearray(data)
    for _ in range(scene.chance.randint(1, 8)):
        changed[scene.chance.randrange(len(changed))] ^= 1 << scene.chance.randrange(8)
    return bytes(changed) if bytes(changed) != data else data[:-1]


def damage(scene: Scene, path: Path) -> None:
    data = damaged(scene, path.read_bytes())
    with path.open("r+b") as file:  # in place, as a disk does it
        file.write(data)
        file.truncate()


def plant(scene: Scene, host: Host, data: bytes, batch: str = "") -> Sign | None:
    """Put a file of games that no worker has played into a host's outbox; return the sign that it is refused."""
    batch = (
        batch or f"{2**39 + scene.chance.randrange(10**9):012d}-10-{host.name}-{scene.chance.randrange(16**16):016x}"
    )
    scene.excused[batch] = "no worker has made it"
    scene.forged.add(batch)
    outbox = scene.folder(host) / "outbox"
    part = outbox / f"{batch}.part"
    try:
        part.write_bytes(data)
        scene.give(host, part)
        part.rename(outbox / f"{batch}.games")
    except OSError:  # another fault has deleted the folder or filled the disk
        return None
    return scene.is_refused(batch)


def forged(scene: Scene, host: Host, changes: dict[str, object], *, illegal: bool = False) -> Sign | None:
    """Plant a copy of a real batch with another header and a valid checksum."""
    sample = scene.a_received_batch(of=host)
    if sample is None:
        return None
    header, frame = take_apart(sample[1])
    if changes.get("first_game") is not None and int(str(changes["first_game"])) < scene.granted(host)[1]:
        changes = {**changes, "first_game": None}  # it has delivered nearly all of them
    header |= {key: value for key, value in changes.items() if value is not None}
    batch = f"{min(int(header['first_game']), 10**12 - 1):09d}-10-{host.name}-{scene.chance.randrange(16**16):016x}"
    header["batch_id"] = batch
    if illegal:
        columns = unpack(header, frame)
        columns["actions"] = np.roll(columns["actions"], 1)
        frame = pack(columns)
    return plant(scene, host, put_together(header, frame), batch)


@contextmanager
def other_heartbeats(scene: Scene, host: Host, changes: dict[str, object]) -> Iterator[None]:
    """Run a program on the host that writes heartbeats in competition with its worker."""
    folder = scene.folder(host)
    try:
        real = json.loads((folder / "worker.json").read_bytes())
    except (OSError, ValueError):
        yield
        return
    text = json.dumps({**real, "pid": 1, **changes, "beat": -1}).replace('"beat": -1', '"beat": BEAT')
    path = folder / FORGED_HEARTBEAT
    with suppress(OSError):  # a full disk
        path.write_text(text)
        scene.give(host, path)
    where = shlex.quote(f"keima/workers/{host.name}")
    loop = f"cd {where}; n={scene.chance.randrange(10**6)}; while :; do n=$((n+1)); "
    loop += f"sed s/BEAT/$n/ {FORGED_HEARTBEAT} >w.part && mv w.part worker.json; sleep 0.4; done"
    host.run(["setsid", "-f", "sh", "-c", loop])
    try:
        yield
    finally:
        host.kill(FORGED_HEARTBEAT)
        path.unlink(missing_ok=True)


@contextmanager
def broken_agents(scene: Scene, host: Host) -> Iterator[None]:
    """Have a host's agents, from the next one on, say what no agent says."""
    program = BROKEN_AGENT.replace("KIND", repr(scene.chance.choice(BROKEN_KINDS))).encode()
    found = {path: path.read_bytes() for path in (host.home / "keima" / ".remote").glob("*.pyz")}
    for path in found:
        with suppress(OSError):  # a full disk
            path.write_bytes(program)
    yield
    for path, content in found.items():
        path.write_bytes(content)
