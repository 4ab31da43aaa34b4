"""Send new models to workers: as a delta to the worker's current model, if that is smaller, else as the whole file.

The assignment has the SHA-256 of a model's content, and the worker uses no file, whole or restored from a delta, with
another hash. If it has none, its heartbeat asks for the whole file (``asks_for_whole_model``).
"""

import re
from collections import OrderedDict
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from keima.worker.worker_folder import WorkerFolder

if TYPE_CHECKING:
    from keima.networks.files.container import Content

MODEL_NAME = re.compile(r"model-([0-9]{6,})\.(model|from-[0-9]{6,}\.delta)")  # of any file of a model
MODEL_PART = re.compile(r"model-([0-9]{6,})\..*\.part")  # of a transfer
DELTA_NAME = re.compile(r"model-([0-9]{6,})\.from-([0-9]{6,})\.delta")
MOST_OF_WHOLE = 0.9  # a larger delta is not worth the decoding
KEPT_DELTAS = 4  # slow workers have few different models
KEPT_MODELS = 2  # the newest, and what most workers have


class WholeModelNeeded(ValueError):
    """A model is missing from the inbox or damaged, or a delta lacks its base."""

    def __init__(self, version: int, why: str) -> None:
        super().__init__(f"{_whole_model_request(version)}: {why}")


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
        """Return the file that brings ``model`` to a worker with ``base``; None: it needs no file, or asks for the
        whole file.
        """
        if self._makes_deltas and base is not None and base.version < model.version:
            with self._guard:
                delta = self._make_delta(model, base)
            if delta is not None:
                return InboxFile(delta_name(model.version, base.version), delta)
        return InboxFile(WorkerFolder(Path()).model_path(model.version).name, model.data)

    def _make_delta(self, model: PublishedModel, base: PublishedModel) -> bytes | None:
        key = (model.sha256, base.sha256)
        if key not in self._deltas:
            from keima.networks.files.delta import encode_delta  # only now: it imports numba

            delta = encode_delta(self._read_content(model), self._read_content(base))
            self._deltas[key] = delta if delta and len(delta) <= MOST_OF_WHOLE * len(model.data) else None
            if len(self._deltas) > KEPT_DELTAS:
                self._deltas.popitem(last=False)
        return self._deltas[key]

    def _read_content(self, model: PublishedModel) -> "Content":
        if model.sha256 not in self._opened:
            from keima.networks.files.container import decode_content  # only now, likewise

            self._opened[model.sha256] = decode_content(model.data)
        self._opened.move_to_end(model.sha256)
        while len(self._opened) > KEPT_MODELS:
            self._opened.popitem(last=False)
        return self._opened[model.sha256]


def delta_name(version: int, base_version: int) -> str:
    """Return the name of a delta in the inbox."""
    return f"model-{version:06d}.from-{base_version:06d}.delta"


def asks_for_whole_model(error: str, version: int) -> bool:
    """Return whether the ``error`` in a heartbeat asks for the whole file of model ``version``."""
    return f"{_whole_model_request(version)}:" in error


def _whole_model_request(version: int) -> str:
    return f"the whole file of model {version} is needed"
