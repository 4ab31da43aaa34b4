"""The models in a worker's inbox: whole files, and deltas to the worker's previous model (``model_push``)."""

from pathlib import Path

from keima.base.files import read_limited, write_atomically
from keima.networks.files.container import MAX_MODEL_BYTES, Content, decode_content, encode_content
from keima.networks.files.delta import expand_delta
from keima.networks.files.model import Model, unpack_model
from keima.worker.model_push import DELTA_NAME, MODEL_NAME, MODEL_PART, WholeModelNeeded
from keima.worker.worker_folder import WorkerFolder


class ModelInbox:
    """The models in a worker's inbox; the last one used stays in memory as the base of the next delta."""

    def __init__(self, folder: WorkerFolder) -> None:
        self._folder = folder
        self._last: Content | None = None
        self._last_version = 0

    def receive_model(self, version: int, sha256: str) -> Model:
        """Read the model that the assignment names, from its file or from a delta.

        Raises:
            WholeModelNeeded: there is neither, or none with this SHA-256.
            CorruptModel: the file has this SHA-256, but is not a valid model.
        """
        content = self._read_whole_model(version, sha256)
        model = unpack_model(content)
        self._last, self._last_version = content, version
        return model

    def remove_other_models(self, version: int) -> None:
        """Keep model ``version``, the last one received, as a whole file, and remove older ones. Newer ones stay.

        Raises:
            OSError: the disk does not take the file.
        """
        path = self._folder.model_path(version)
        if not path.exists() and self._last is not None and self._last_version == version:
            write_atomically(
                path, encode_content(self._last, compressed=False), durable=False
            )  # can be requested again
        for path in self._folder.inbox.iterdir():
            found, part = MODEL_NAME.fullmatch(path.name), MODEL_PART.fullmatch(path.name)
            if part and int(part[1]) < version:  # of a transfer that was broken off, and is not continued
                path.unlink(missing_ok=True)
            if found and (int(found[1]) < version or (int(found[1]) == version and found[2] != "model")):
                path.unlink(missing_ok=True)

    def _read_whole_model(self, version: int, sha256: str) -> Content:
        path = self._folder.model_path(version)
        if self._last is not None and self._last.sha256 == sha256:
            return self._last
        try:
            content = decode_content(read_limited(path, MAX_MODEL_BYTES))
            if content.sha256 == sha256:
                return content
            why = f"the SHA-256 of {path} does not match the assignment"
        except (OSError, ValueError) as error:
            why = f"{path.name}: {error}"
        for delta, base in _find_deltas(self._folder, version):
            try:
                content = expand_delta(read_limited(delta, MAX_MODEL_BYTES), self._read_base(base))
                if content.sha256 == sha256:
                    path.unlink(missing_ok=True)  # it is wrong
                    return content
                why = f"the model restored from {delta.name} does not match the SHA-256 in the assignment"
            except (OSError, ValueError) as error:
                why = f"{delta.name}: {error}"
        raise WholeModelNeeded(version, why)

    def _read_base(self, version: int) -> Content:
        """Return the base of a delta, from memory if it was the last model.

        Raises:
            OSError, CorruptModel: it is missing or invalid.
        """
        if self._last is not None and self._last_version == version:
            return self._last
        return decode_content(read_limited(self._folder.model_path(version), MAX_MODEL_BYTES))


def _find_deltas(folder: WorkerFolder, version: int) -> list[tuple[Path, int]]:
    """Return the deltas to ``version`` in the inbox, newest base first, with the versions of their bases."""
    found = ((path, DELTA_NAME.fullmatch(path.name)) for path in folder.inbox.iterdir())
    return sorted(
        ((path, int(match[2])) for path, match in found if match and int(match[1]) == version),
        key=lambda pair: -pair[1],
    )
