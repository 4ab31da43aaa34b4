"""A new model on its way to a worker that has an older one: as a delta, where that is much smaller, else as the whole file.

A delta is a model file whose weights are XORed, plane by plane, with those of the worker's model, under a magic of its own. The worker
makes the whole file of it again, to the byte: all that follows, checksum and canary included, is as with a file that came whole.
Where it cannot, it says so in its heartbeat (``asks_for_whole``), and is sent the whole file.
"""

import re
from collections import OrderedDict
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import zstandard

from training.files import PART, read_limited, sha256_hex
from training.model_file import DIGEST_BYTES, FORMAT, MAX_MODEL_BYTES, PREFIX, seal
from training.worker_folder import WorkerFolder

DELTA_MAGIC = b"KEIMADL\n"
DELTA_NAME = re.compile(r"model-([0-9]{6,})\.from-([0-9]{6,})\.delta")
MODEL_NAME = re.compile(r"model-([0-9]{6,})\.(model|from-[0-9]{6,}\.delta)")
MOST_OF_WHOLE = 0.75  # a delta above this share of the whole file does not pay for the work of undoing it
MAX_PLANE_BYTES = 2**30
KEPT = 4  # deltas: workers that are behind have few different models


class WholeModelNeeded(ValueError):
    """A model is not in the inbox, is damaged there, or came as a delta whose base is not there."""

    def __init__(self, version: int, why: str) -> None:
        super().__init__(f"{_asking(version)}: {why}")


class Published(Protocol):
    """A model as its file; one that never changes."""

    @property
    def version(self) -> int:
        """The model's."""

    @property
    def data(self) -> bytes:
        """The whole file."""

    @property
    def sha256(self) -> str:
        """Of the whole file, in hexadecimal."""


@dataclass(frozen=True)
class InboxFile:
    """What to put into a worker's inbox: the file's name there, and its content."""

    name: str
    data: bytes


class ModelPush:
    """What to send to whom. A delta is made once, however many workers need it.

    Args:
        guard: lets one thread in at a time, if there are several: the others wait for the delta that one of them makes.
    """

    def __init__(self, *, guard: AbstractContextManager[object] | None = None) -> None:
        self._guard = guard or nullcontext()
        self._deltas: OrderedDict[tuple[str, str], bytes | None] = OrderedDict()

    def file_for(self, model: Published, base: Published | None) -> InboxFile:
        """What brings ``model`` to a worker that has the file of ``base``; None: it has none, or asks for the whole model."""
        if base is not None and base.version < model.version:
            with self._guard:
                delta = self._delta(model, base)
            if delta is not None:
                return InboxFile(delta_name(model.version, base.version), delta)
        return InboxFile(WorkerFolder(Path()).model_path(model.version).name, model.data)

    def _delta(self, model: Published, base: Published) -> bytes | None:
        key = (model.sha256, base.sha256)
        if key not in self._deltas:
            delta = encode_delta(model.data, base.data)
            self._deltas[key] = delta if delta and len(delta) <= MOST_OF_WHOLE * len(model.data) else None
            if len(self._deltas) > KEPT:
                self._deltas.popitem(last=False)
        return self._deltas[key]


def delta_name(version: int, base_version: int) -> str:
    """A delta's name in the inbox."""
    return f"model-{version:06d}.from-{base_version:06d}.delta"


def encode_delta(data: bytes, base: bytes) -> bytes | None:
    """The model file ``data`` as what changes ``base`` into it; None when they do not hold equally many weights."""
    (head, planes), (_, others) = _split(data), _split(base)
    if len(planes) != len(others):
        return None
    frame = zstandard.ZstdCompressor(level=1).compress(_xor(planes, others))
    return b"".join((PREFIX.pack(DELTA_MAGIC, FORMAT, len(head)), head, frame))


def expand_delta(delta: bytes, base: bytes) -> bytes:
    """The model file of which ``encode_delta`` made ``delta``, with the same ``base``. Whether it is right, its SHA-256 says.

    Raises:
        ValueError: they do not fit together, or are no such files.
    """
    magic, number, length = PREFIX.unpack_from(delta) if len(delta) >= PREFIX.size else (b"", 0, 0)
    if (magic, number) != (DELTA_MAGIC, FORMAT):
        raise ValueError("it is no delta that this version of the program knows")
    end = PREFIX.size + length
    planes, others = _unpacked(memoryview(delta)[end:]), _split(base)[1]
    if len(planes) != len(others):
        raise ValueError("it was made for a network of another size")
    return seal(delta[PREFIX.size : end], _xor(planes, others))


def receive_model(folder: WorkerFolder, version: int, sha256: str) -> bytes:
    """The file of a model in a worker's inbox; of a delta the whole file is made, and put there.

    Raises:
        WholeModelNeeded: there is neither, or not with this SHA-256.
        OSError: the disk does not take the file.
    """
    path = folder.model_path(version)
    try:
        data = read_limited(path, MAX_MODEL_BYTES)
        if sha256_hex(data) == sha256:
            return data
        why = f"{path} does not have the SHA-256 that the assignment names"
    except (OSError, ValueError) as error:
        why = str(error)
    for delta, base_version in _deltas(folder, version):
        try:
            base = read_limited(folder.model_path(base_version), MAX_MODEL_BYTES)
            data = expand_delta(read_limited(delta, MAX_MODEL_BYTES), base)
        except (OSError, ValueError) as error:
            why = f"{delta.name}: {error}"
            continue
        if sha256_hex(data) == sha256:
            _put(path, data)
            return data
        why = f"{delta.name} and {folder.model_path(base_version).name} do not make the model that the assignment names"
    raise WholeModelNeeded(version, why)


def forget_models(folder: WorkerFolder, version: int) -> None:
    """Remove from the inbox what was needed up to ``version``, and is not any more. Newer models may be there already, and stay."""
    for path in folder.inbox.iterdir():
        found = MODEL_NAME.fullmatch(path.name)
        if found and (int(found[1]) < version or (int(found[1]) == version and found[2] != "model")):
            path.unlink(missing_ok=True)


def asks_for_whole(error: str, version: int) -> bool:
    """Whether a worker's heartbeat, with this ``error``, says that it needs the whole file of model ``version``."""
    return f"{_asking(version)}:" in error


def _asking(version: int) -> str:
    return f"the whole file of model {version} is needed"


def _put(path: Path, data: bytes) -> None:
    """Have the file appear whole. It is not synced, which takes long: what a power cut leaves of it is asked for again."""
    part = path.with_name(path.name + PART)
    try:
        part.unlink(missing_ok=True)
        part.touch(mode=0o600)
        part.write_bytes(data)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _deltas(folder: WorkerFolder, version: int) -> list[tuple[Path, int]]:
    """The deltas to ``version`` in the inbox, newest base first, with the versions of their bases."""
    found = ((path, DELTA_NAME.fullmatch(path.name)) for path in folder.inbox.iterdir())
    return sorted(((path, int(match[2])) for path, match in found if match and int(match[1]) == version), key=lambda pair: -pair[1])


def _split(data: bytes) -> tuple[bytes, bytes]:
    """What stands before a model file's weights, and the weights."""
    if len(data) < PREFIX.size + DIGEST_BYTES:
        raise ValueError("it is no model file")
    end = PREFIX.size + PREFIX.unpack_from(data)[2]
    return data[:end], _unpacked(memoryview(data)[end:-DIGEST_BYTES])


def _unpacked(frame: memoryview) -> bytes:
    try:
        size = zstandard.get_frame_parameters(frame).content_size
        if size > MAX_PLANE_BYTES:
            raise ValueError(f"its {size:,} bytes of weights are too many")
        return zstandard.ZstdDecompressor().decompress(frame, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(f"its weights cannot be unpacked: {error}") from error


def _xor(planes: bytes, others: bytes) -> memoryview:
    return np.bitwise_xor(np.frombuffer(planes, np.uint8), np.frombuffer(others, np.uint8)).data
