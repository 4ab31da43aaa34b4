"""A new model on its way to a worker that has an older one: as a delta, where that is smaller, else as the whole file.

The SHA-256 in an assignment names what a model file holds: the worker believes no file, whole or made of a delta, that
holds something else. Where it has none that is right, it says so in its heartbeat (``asks_for_whole``), and is sent the
whole file.
"""

import re
from collections import OrderedDict
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from training.common.files import read_limited, write_atomically
from training.networks.model_delta import encode_delta, expand_delta
from training.networks.model_file import MAX_MODEL_BYTES, Content, Model, open_model, seal
from training.worker.worker_folder import WorkerFolder

DELTA_NAME = re.compile(r"model-([0-9]{6,})\.from-([0-9]{6,})\.delta")
MODEL_NAME = re.compile(r"model-([0-9]{6,})\.(model|from-[0-9]{6,}\.delta)")
MOST_OF_WHOLE = 0.9  # a delta above this share of the whole file does not pay for the work of undoing it
KEPT_DELTAS = 4  # workers that are behind have few different models
KEPT_MODELS = 2  # the newest, and what most workers have


class WholeModelNeeded(ValueError):
    """A model is not in the inbox, is damaged there, or came as a delta whose base is not there."""

    def __init__(self, version: int, why: str) -> None:
        super().__init__(f"{_asking(version)}: {why}")


@dataclass(frozen=True, kw_only=True)
class PublishedModel:
    """A model as its file."""

    version: int
    data: bytes  # the whole file
    sha256: str  # of what it holds, in hexadecimal


@dataclass(frozen=True)
class InboxFile:
    """What to put into a worker's inbox: the file's name there, and its content."""

    name: str
    data: bytes


class ModelPush:
    """What to send to whom. A delta is made once, however many workers need it.

    Args:
        deltas: whether any are made.
        guard: lets one thread in at a time, if there are several: the others wait for the delta that one of them makes.
    """

    def __init__(self, *, deltas: bool = True, guard: AbstractContextManager[object] | None = None) -> None:
        self._makes_deltas = deltas
        self._guard = guard or nullcontext()
        self._deltas: OrderedDict[tuple[str, str], bytes | None] = OrderedDict()
        self._opened: OrderedDict[str, Content] = OrderedDict()  # by SHA-256, the one needed last at the end

    def file_for(self, model: PublishedModel, base: PublishedModel | None) -> InboxFile:
        """What brings ``model`` to a worker that has the file of ``base``; None: it has none, or asks for the whole
        model.
        """
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
    """The models in a worker's inbox, and the last one that it took, which stays in memory: most deltas are to that
    one.
    """

    def __init__(self, folder: WorkerFolder) -> None:
        self._folder = folder
        self._last: Content | None = None
        self._last_version = 0

    def receive(self, version: int, sha256: str) -> Model:
        """A model that the assignment names, from its file or from a delta.

        Raises:
            WholeModelNeeded: there is neither, or not what has this SHA-256.
            CorruptModel: it is what was sent, but no model.
        """
        content = self._whole(version, sha256)
        model = content.model()
        self._last, self._last_version = content, version
        return model

    def tidy(self, version: int) -> None:
        """See that model ``version``, which was received last, lies there as a whole file, and nothing older beside it.

        Newer models may be there already, and stay.

        Raises:
            OSError: the disk does not take the file.
        """
        path = self._folder.model_path(version)
        if not path.exists() and self._last is not None and self._last_version == version:
            write_atomically(
                path, seal(self._last, compressed=False), durable=False
            )  # what a power cut leaves of it is asked for again
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
            why = f"{path} does not hold what has the SHA-256 that the assignment names"
        except (OSError, ValueError) as error:
            why = f"{path.name}: {error}"
        for delta, base in _deltas(self._folder, version):
            try:
                content = expand_delta(read_limited(delta, MAX_MODEL_BYTES), self._base(base))
                if content.sha256 == sha256:
                    path.unlink(missing_ok=True)  # it is wrong
                    return content
                why = f"{delta.name} does not make the model that the assignment names"
            except (OSError, ValueError) as error:
                why = f"{delta.name}: {error}"
        raise WholeModelNeeded(version, why)

    def _base(self, version: int) -> Content:
        """The model to which there is a delta, from memory if it was the last one.

        Raises:
            OSError, CorruptModel: it is not there, or not what it should be.
        """
        if self._last is not None and self._last_version == version:
            return self._last
        return open_model(read_limited(self._folder.model_path(version), MAX_MODEL_BYTES))


def delta_name(version: int, base_version: int) -> str:
    """A delta's name in the inbox."""
    return f"model-{version:06d}.from-{base_version:06d}.delta"


def asks_for_whole(error: str, version: int) -> bool:
    """Whether a worker's heartbeat, with this ``error``, says that it needs the whole file of model ``version``."""
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
