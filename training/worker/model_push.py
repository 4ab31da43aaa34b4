"""Send new models to workers: as a delta to the model that a worker has, if that is smaller, else as the whole file.

The assignment has the SHA-256 of a model's content, and the worker uses no file, whole or restored from a delta, with
another hash. If it has none, its heartbeat asks for the whole file (``asks_for_whole``).
"""

import re
from collections import OrderedDict
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from training.common.files import read_limited, write_atomically
from training.networks.model_file import MAX_MODEL_BYTES, Content, Model, encode_delta, expand_delta, open_model, seal
from training.worker.worker_folder import WorkerFolder

DELTA_NAME = re.compile(r"model-([0-9]{6,})\.from-([0-9]{6,})\.delta")
MODEL_NAME = re.compile(r"model-([0-9]{6,})\.(model|from-[0-9]{6,}\.delta)")
MOST_OF_WHOLE = 0.9  # a larger delta is not worth the decoding
KEPT_DELTAS = 4  # slow workers have few different models
KEPT_MODELS = 2  # the newest, and what most workers have


class WholeModelNeeded(ValueError):
    """A model is missing in the inbox, damaged, or a delta without its base."""

    def __init__(self, version: int, why: str) -> None:
        super().__init__(f"{_asking(version)}: {why}")


@dataclass(frozen=True, kw_only=True)
class PublishedModel:
    """A published model with its file."""

    version: int
    data: bytes  # the whole file
    sha256: str  # of its content, in hexadecimal


@dataclass(frozen=True)
class InboxFile:
    """A file for a worker's inbox."""

    name: str
    data: bytes


class ModelPush:
    """Decides what to send to a worker. A delta is computed once for all workers.

    Args:
        deltas: whether to use deltas.
        guard: a lock, if several threads use this: one computes a delta while the others wait.
    """

    def __init__(self, *, deltas: bool = True, guard: AbstractContextManager[object] | None = None) -> None:
        self._makes_deltas = deltas
        self._guard = guard or nullcontext()
        self._deltas: OrderedDict[tuple[str, str], bytes | None] = OrderedDict()
        self._opened: OrderedDict[str, Content] = OrderedDict()  # by SHA-256, the one needed last at the end

    def file_for(self, model: PublishedModel, base: PublishedModel | None) -> InboxFile:
        """The file that brings ``model`` to a worker with ``base``; None: it has none, or asks for the whole file."""
        if self._makes_deltas and base is not None and base.version < model.version:
            with self._guard:
                delta = self._delta(model, base)
            if delta is not None:
                return InboxFile(delta_name(model.version, base.version), delta)
        return InboxFile(WorkerFolder(Path()).model_path(model.version).name, model.data)

    def _delta(self, model: PublishedModel, base: PublishedModel) -> bytes | None:
        key = (model.sha256, base.sha256)
        if key not in self._deltas:
            delta = encode_delta(self._content(model), self._content(base))
            self._deltas[key] = delta if delta and len(delta) <= MOST_OF_WHOLE * len(model.data) else None
            if len(self._deltas) > KEPT_DELTAS:
                self._deltas.popitem(last=False)
        return self._deltas[key]

    def _content(self, model: PublishedModel) -> Content:
        if model.sha256 not in self._opened:
            self._opened[model.sha256] = open_model(model.data)
        self._opened.move_to_end(model.sha256)
        while len(self._opened) > KEPT_MODELS:
            self._opened.popitem(last=False)
        return self._opened[model.sha256]


class ModelInbox:
    """The models in a worker's inbox; the last one used stays in memory as the base of the next delta."""

    def __init__(self, folder: WorkerFolder) -> None:
        self._folder = folder
        self._last: Content | None = None
        self._last_version = 0

    def receive(self, version: int, sha256: str) -> Model:
        """Read the model that the assignment names, from its file or from a delta.

        Raises:
            WholeModelNeeded: there is neither, or none with this SHA-256.
            CorruptModel: the file has this SHA-256, but is no valid model.
        """
        content = self._whole(version, sha256)
        model = content.model()
        self._last, self._last_version = content, version
        return model

    def tidy(self, version: int) -> None:
        """Keep model ``version``, the last one received, as a whole file, and remove older ones. Newer ones stay.

        Raises:
            OSError: the disk does not take the file.
        """
        path = self._folder.model_path(version)
        if not path.exists() and self._last is not None and self._last_version == version:
            write_atomically(path, seal(self._last, compressed=False), durable=False)  # can be requested again
        for path in self._folder.inbox.iterdir():
            found = MODEL_NAME.fullmatch(path.name)
            if found and (int(found[1]) < version or (int(found[1]) == version and found[2] != "model")):
                path.unlink(missing_ok=True)

    def _whole(self, version: int, sha256: str) -> Content:
        path = self._folder.model_path(version)
        if self._last is not None and self._last.sha256 == sha256:
            return self._last
        try:
            content = open_model(read_limited(path, MAX_MODEL_BYTES))
            if content.sha256 == sha256:
                return content
            why = f"{path} does not have the SHA-256 in the assignment"
        except (OSError, ValueError) as error:
            why = f"{path.name}: {error}"
        for delta, base in _deltas(self._folder, version):
            try:
                content = expand_delta(read_limited(delta, MAX_MODEL_BYTES), self._base(base))
                if content.sha256 == sha256:
                    path.unlink(missing_ok=True)  # it is wrong
                    return content
                why = f"{delta.name} does not give the SHA-256 in the assignment"
            except (OSError, ValueError) as error:
                why = f"{delta.name}: {error}"
        raise WholeModelNeeded(version, why)

    def _base(self, version: int) -> Content:
        """The base of a delta, from memory if it was the last model.

        Raises:
            OSError, CorruptModel: it is missing or invalid.
        """
        if self._last is not None and self._last_version == version:
            return self._last
        return open_model(read_limited(self._folder.model_path(version), MAX_MODEL_BYTES))


def delta_name(version: int, base_version: int) -> str:
    """The name of a delta in the inbox."""
    return f"model-{version:06d}.from-{base_version:06d}.delta"


def asks_for_whole(error: str, version: int) -> bool:
    """Whether the ``error`` in a heartbeat asks for the whole file of model ``version``."""
    return f"{_asking(version)}:" in error


def _asking(version: int) -> str:
    return f"the whole file of model {version} is needed"


def _deltas(folder: WorkerFolder, version: int) -> list[tuple[Path, int]]:
    """The deltas to ``version`` in the inbox, newest base first, with the versions of their bases."""
    found = ((path, DELTA_NAME.fullmatch(path.name)) for path in folder.inbox.iterdir())
    return sorted(
        ((path, int(match[2])) for path, match in found if match and int(match[1]) == version),
        key=lambda pair: -pair[1],
    )
