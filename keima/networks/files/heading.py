"""Finds a model's file and reads its heading and its hash, before anything that takes long to import."""

import json
import struct
from dataclasses import dataclass
from pathlib import Path

from keima.base.run_folder import find_board_folder
from keima.data.ledger import read_ledger

MODEL_MAGIC = b"KEIMAMD\n"  # of transfer files
MODEL_PREFIX = struct.Struct("<8sHI")  # magic, format number, length of the header
DIGEST_BYTES = 32  # at the end of a transfer file: the SHA-256 of head and unpacked weights
SAFETENSORS_LENGTH = struct.Struct("<Q")  # of the header of a safetensors file
METADATA = "keima"  # the key of our metadata in a safetensors file
MAX_HEADER_BYTES = 2**24  # bytes of a header


@dataclass(frozen=True, kw_only=True)
class Heading:
    """The game and version in the header of a model's file."""

    game: str
    model_version: int


def find_model_file(network: Path, version: int | None = None) -> Path:
    """Return the file of a network that is given as a run's folder, whose newest accepted model it is, or as a model's
    file.

    Raises:
        ValueError, OSError: there is no such run, it has no such model, or a file has no versions.
    """
    if network.is_dir() or (version is not None and not network.is_file()):
        return find_run_model(network, version)
    if version is not None:
        raise ValueError(f"--version selects a run's model, and {network} is a file")
    return network


def find_run_model(run: Path, version: int | None) -> Path:
    """Return the file of a run's model; without a version, of the newest accepted one.

    Raises:
        ValueError, OSError: there is none.
    """
    with read_ledger(run) as ledger:
        rows = [row for row in ledger.models() if (version is None and row.accepted) or row.version == version]
    if not rows:
        board = find_board_folder(run)
        hint = "" if board == run else f"; it is still on a smaller board, in {board}"
        raise ValueError(f"{run} has no {'accepted model yet' if version is None else f'model {version}'}{hint}")
    if not rows[-1].path:
        raise ValueError(
            f"{run} no longer has the file of model {version}: run.keep_models keeps some of the older ones"
        )
    return run / rows[-1].path


def stored_sha256(data: bytes) -> str:
    """Return the hash that identifies the model in a transfer file, as stored there; ``decode_content`` checks it."""
    return data[-DIGEST_BYTES:].hex()


def read_heading(path: Path) -> Heading | None:
    """Return the heading of a model's file; None if it is invalid: reading the whole file gives the reason."""
    try:
        with path.open("rb") as file:
            begin = file.read(MODEL_PREFIX.size)
            if path.suffix == ".safetensors":
                file.seek(SAFETENSORS_LENGTH.size)
                metadata = json.loads(file.read(min(SAFETENSORS_LENGTH.unpack_from(begin)[0], MAX_HEADER_BYTES)))[
                    "__metadata__"
                ]
                found = json.loads(metadata[METADATA])
            else:
                found = json.loads(file.read(min(MODEL_PREFIX.unpack(begin)[2], MAX_HEADER_BYTES)))["model"]
        return Heading(game=str(found["game"]), model_version=int(found["model_version"]))
    except (OSError, ValueError, KeyError, TypeError, struct.error, RecursionError):
        return None
