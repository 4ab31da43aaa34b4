"""Judgements of a race that were made before, in the run's folder: a race that was interrupted continues with them."""

import json
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from keima.base.files import read_limited, sha256_hex, write_atomically
from keima.play.speedrun.judge import Judgement
from keima.play.speedrun.target import Target

FILE_NAME = "judgements.json"
MAX_BYTES = 1_000_000


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    judgements: dict[str, Judgement]


class StoredJudgements:
    """The judgements of a run's models by a target.

    Args:
        run: the run's folder.
        target: the target.
        version: of Keima; another one judges anew.
    """

    def __init__(self, run: Path, target: Target, version: str) -> None:
        self._path, self._about = run / FILE_NAME, [target.model_dump(mode="json"), version]
        self._found = dict[str, Judgement]()
        with suppress(OSError, ValueError):  # it can be made again
            self._found.update(_Stored.model_validate_json(read_limited(self._path, MAX_BYTES)).judgements)

    def get(self, model_sha256: str) -> Judgement | None:
        """Return the judgement of a model, if there is one."""
        return self._found.get(self._key(model_sha256))

    def add(self, model_sha256: str, judgement: Judgement) -> None:
        """Store a judgement.

        Raises:
            OSError: it cannot be written.
        """
        self._found[self._key(model_sha256)] = judgement
        content = _Stored(judgements=self._found).model_dump_json(indent=1)
        write_atomically(self._path, content.encode(), durable=False)

    def _key(self, model_sha256: str) -> str:
        return sha256_hex(json.dumps([*self._about, model_sha256]).encode())
