"""The readers of files and messages that others may have damaged: real inputs of each, possible changes, and how they
refuse.
"""

import functools
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
import zstandard

from keima.base.files import sha256_hex
from keima.cluster.agent.call import find_answer, read_answer
from keima.cluster.agent.client import AgentConnection, AgentTransport
from keima.cluster.agent.commands import COMMANDS, POLL, FolderRequest
from keima.cluster.fleet.poll import parse_poll_answer
from keima.cluster.ssh.errors import RemoteFailure, Unreachable
from keima.cluster.ssh.transport import Completed, LocalTransport, StreamEnded
from keima.config.load import ConfigError, load_settings
from keima.data.imports.pgn_games import read_pgn_games
from keima.data.imports.sgf_games import read_sgf_games
from keima.data.records import CorruptBatch
from keima.evaluation.remote_matches import decode_result
from keima.games import load_game
from keima.learning.checkpoint import CorruptCheckpoint, read_checkpoint
from keima.networks.files.container import CorruptModel, decode_content, encode_content
from keima.networks.files.delta import encode_delta, expand_delta
from keima.networks.files.model import load_safetensors, unpack_model
from keima.networks.files.weights_file import CorruptWeights, load_weights
from keima.report.files.run_files import UnreadableStats, read_stats
from keima.worker.worker_folder import BrokenMessage, WorkerFolder
from tests.data.spoilt_batches import ODD_VALUES, Random, damage, read_batch, real_batches, spoil_batch
from tests.real_inputs import (
    BETWEEN,
    GROUPS,
    PARTS,
    PGN,
    SGF,
    answers,
    assignment,
    checkpoint,
    configs,
    dumped,
    heartbeat,
    poll,
    result,
    safetensors,
    stats,
    weights,
)
from tests.small_run import GAME, NETWORK, model_bytes

LOST = (RemoteFailure, Unreachable)  # an agent whose answers make no sense
MEMORY = Path("/dev/shm")  # Linux's folder in memory
FOLDER = tempfile.TemporaryDirectory(prefix="keima-fuzz-", dir=MEMORY if MEMORY.is_dir() else None)
PLACE = Path(FOLDER.name)
ODD = (
    *ODD_VALUES,
    1e308,
    -1e308,
    "NaN",
    "1e999",
    "\x1b[2J",
    "$(id)",
    "a\nb",
    " ",
    "٣",
    "../" * 40 + "etc/passwd",
    [[]],
    [None] * 5,
)
MOST_ELEMENTS = 1000  # of a repeated list: larger files take longer, which is no fault
NONCE = "0123456789abcdef"
CHESS, GO = load_game("chess", max_plies=60), load_game("go", size=5)


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """One reader.

    Args:
        bases: real inputs.
        change: damages one.
        read: reads one, and uses what was accepted.
        errors: the exceptions that it may raise; none if it reports bad input in another way.
    """

    bases: list[bytes]
    change: Callable[[Random, bytes], bytes]
    read: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]


def forge(random: Random, value: Any) -> Any:
    """Return the same JSON with an odd value somewhere in it."""
    if isinstance(value, dict) and value and random.random() < 0.85:
        key, way = [*value][random.integers(len(value))], random.random()
        if way < 0.1:
            return {name: each for name, each in value.items() if name != key}
        if way < 0.2:
            return {**value, "surprise": ODD[random.integers(len(ODD))]}
        return {**value, key: forge(random, value[key])}
    if isinstance(value, list) and value and random.random() < 0.8:
        place, way = int(random.integers(len(value))), random.random()
        if way < 0.2:
            return value[:place] + value[place + 1 :]
        if way < 0.3:
            return (value * int(random.integers(2, 50)))[:MOST_ELEMENTS]
        return [*value[:place], forge(random, value[place]), *value[place + 1 :]]
    if isinstance(value, int | float) and random.random() < 0.3:
        return value + int(random.integers(-3, 4))
    if isinstance(value, str) and value and random.random() < 0.3:
        return damage(random, value.encode("utf-8", "replace")).decode("utf-8", "surrogateescape")
    return ODD[random.integers(len(ODD))]


def spoil_json(random: Random, data: bytes) -> bytes:
    """Damage bits and lengths, or put an odd value somewhere, or return what is hardly JSON."""
    way = random.random()
    if way < 0.3:
        return damage(random, data)
    if way < 0.35:
        return b"[" * int(random.integers(1, 60_000))
    if way < 0.4:
        return b'{"a":' * int(random.integers(1, 10_000)) + b"1"
    value = loaded(data)
    for _ in range(random.integers(1, 4)):
        value = forge(random, value)
    return dumped(value)


loaded, loaded_yaml = (
    functools.lru_cache(json.loads),
    functools.lru_cache(yaml.safe_load),
)  # their values must not be changed


def or_damage(change: Callable[[Random, bytes], bytes]) -> Callable[[Random, bytes], bytes]:
    """Return a mutation like ``change`` that damages every third input instead."""
    return lambda random, data: damage(random, data) if random.random() < 0.33 else change(random, data)


# Models.


@functools.cache
def base_model() -> Any:
    return decode_content(model_bytes(1))


def spoil_model(random: Random, data: bytes) -> bytes:
    """Return another header or other weights, each with a valid checksum."""
    content = decode_content(data)
    words = tuple(row.copy() for row in content.words)
    raw = content.raw_header
    if random.random() < 0.7:
        raw = spoil_json(random, raw)
    else:
        row = words[random.integers(len(words))]
        if row.size:
            row[random.integers(row.size)] = random.integers(np.iinfo(row.dtype).max, dtype=row.dtype, endpoint=True)
    return encode_content(replace(content, raw_header=raw, words=words))


def read_model(data: bytes) -> object:
    return unpack_model(decode_content(data)).build(GAME)


def read_delta(data: bytes) -> object:
    return unpack_model(expand_delta(data, base_model()))


# Messages and files of a run.


def in_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """Return a reader that gets its input from a file."""

    path = PLACE / name

    def reader(data: bytes) -> object:
        put(path, data)
        return read(path)

    return reader


def put(path: Path, data: bytes) -> None:
    """Write a file with less overhead than Path."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(descriptor, data)
    os.close(descriptor)


def spoil_checkpoint(random: Random, data: bytes) -> bytes:
    """Damage one of its files: at random, or an index with other content, or tensors with other values and valid
    checksums.
    """
    index, *tensors = data.split(BETWEEN)
    which = int(random.integers(len(PARTS)))
    if random.random() < 0.3:
        parts = [index, *tensors]
        parts[which] = damage(random, parts[which])
        return BETWEEN.join(parts)
    content = json.loads(json.loads(index)["content"])
    if which == 0:
        text = spoil_json(random, dumped(content)).decode("utf-8", "replace")
    else:
        tensors[which - 1] = damage(random, tensors[which - 1])
        content["groups"][[*GROUPS][which - 1]] = sha256_hex(tensors[which - 1])
        text = json.dumps(content)
    return BETWEEN.join([dumped({"sha256": sha256_hex(text.encode()), "content": text}), *tensors])


def read_checkpoint_files(data: bytes) -> object:
    for name, part in zip(PARTS, data.split(BETWEEN), strict=False):
        put(PLACE / "spoilt" / name, part)
    return read_checkpoint(PLACE / "spoilt")


def spoil_config(random: Random, data: bytes) -> bytes:
    """Return other settings, or YAML tricks."""
    if random.random() < 0.8:
        return spoil_json(random, dumped(loaded_yaml(data)))
    tricks = [
        b"a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
        b"!!python/object/apply:os.system [id]\n",
        b"run: {name: !!binary aGVsbG8=}\n",
        b"- " * int(random.integers(1, 5000)),
        b"{" * int(random.integers(1, 5000)),
        b"? [a]\n: b\n",
        b"--- 1\n--- 2\n",
        b"run: !!timestamp 2001-01-01\n",
        b"run:\n  name: |\n" + b"   x\n" * 1000,
    ]
    return tricks[random.integers(len(tricks))]


def spoil_text(random: Random, data: bytes) -> bytes:
    """Damage text at random, or insert meaningful words in the wrong place."""
    words = [
        b"{",
        b"}",
        b"(",
        b")",
        b"[",
        b"]",
        b'"',
        b";",
        b"%",
        b"$",
        b"1-0",
        b"O-O",
        b"e8=Q",
        b"--",
        b"\x00",
        b"\xff",
        b"\n\n",
        b"x" * 3000,
    ]
    for _ in range(random.integers(1, 6)):
        place = int(random.integers(len(data) + 1))
        data = (
            data[:place] + words[random.integers(len(words))] + data[place:]
            if random.random() < 0.6
            else damage(random, data)
        )
    return data


def read_chess(path: Path) -> object:
    return [*read_pgn_games(path, CHESS)]


def read_go(path: Path) -> object:
    return [*read_sgf_games(path, GO)]


# Answers of machines.


def read_answers(data: bytes) -> object:
    answer = find_answer("w", Completed(0, b"noise\n@@" + NONCE.encode() + b" " + data + b"\n", b""), NONCE)
    read = []
    for command in COMMANDS.values():
        try:
            read.append(read_answer("w", command, answer))
        except RemoteFailure:
            continue
    if not read:
        raise RemoteFailure("w", "it is no answer to anything")
    return read


class Said:
    """A stream of an agent that has said something and ended."""

    def __init__(self, said: bytes) -> None:
        self._said = said

    def send(self, data: bytes) -> None: ...

    def receive(self, seconds: float) -> bytes:
        said, self._said = self._said, b""
        if not said:
            raise StreamEnded("w", "its program has ended")
        return said

    def close(self) -> None: ...


def frame(text: bytes, data: bytes = b"") -> bytes:
    return f"@@{NONCE} {len(text):08x}{len(data):08x}".encode() + text + data


def read_frames(data: bytes) -> object:
    """Read an agent's first frame and the answer to a poll."""
    agent = AgentConnection(Said(data), NONCE, "w")
    agent.read_greeting(1.0)
    agent.send_request(0, POLL.name, {})
    return agent.wait_for_reply(0, 0.0)


def read_poll(data: bytes) -> object:
    """Read the answer to a poll, with the bytes of its files, which came in a sound frame."""
    reply = read_frames(frame(b'{"program": "p"}') + frame(b"[0, " + data + b"]", b"games"))
    request = FolderRequest(place="workers/w", coach="c", seen="")
    assert isinstance(reply, tuple)
    return parse_poll_answer(AgentTransport(LocalTransport(PLACE, worker="w")), [request], *reply, python="python3")


def _decoders() -> Iterable[tuple[str, Decoder]]:
    folder = WorkerFolder(PLACE / "folder").create_folders()
    (PLACE / "spoilt").mkdir()
    delta = encode_delta(decode_content(model_bytes(2)), base_model())
    assert delta and NETWORK
    heartbeats = in_file("folder/worker.json", lambda path: folder.read_heartbeat())
    assignments = in_file("folder/inbox/assignment.json", lambda path: folder.read_assignment())
    packed = zstandard.compress(PGN.encode())
    for name, bases, change, read, *errors in (
        ("batch", real_batches(), spoil_batch, read_batch, CorruptBatch),
        ("model", [model_bytes(1)], or_damage(spoil_model), read_model, CorruptModel),
        ("delta", [delta], damage, read_delta, CorruptModel),
        ("safetensors", [safetensors(PLACE)], damage, in_file("m.safetensors", load_safetensors), CorruptModel),
        ("weights", [weights(PLACE)], damage, in_file("w.pth", load_weights), CorruptWeights),
        ("checkpoint", [checkpoint(PLACE)], spoil_checkpoint, read_checkpoint_files, CorruptCheckpoint),
        ("worker.json", [heartbeat()], spoil_json, heartbeats, BrokenMessage),
        ("assignment", [assignment()], spoil_json, assignments, BrokenMessage),
        ("match", [result()], spoil_json, decode_result, ValueError),
        ("machine", [dumped({"ok": each}) for each in answers().values()], spoil_json, read_answers, RemoteFailure),
        ("agent", [frame(b'{"program": "p"}') + frame(b"[0, " + poll() + b"]", b"games")], damage, read_frames, *LOST),
        ("poll", [poll()], spoil_json, read_poll, *LOST),
        ("config", configs(), or_damage(spoil_config), in_file("c.yaml", load_settings), ConfigError),
        ("stats", [stats()], spoil_json, in_file("s.json", read_stats), UnreadableStats),
        ("pgn", [PGN.encode()], spoil_text, in_file("g.pgn", read_chess)),
        ("pgn.zst", [packed], damage, in_file("g.pgn.zst", read_chess), ValueError),
        ("sgf", [SGF.encode()], spoil_text, in_file("g.sgf", read_go)),
    ):
        yield name, Decoder(bases=bases, change=change, read=read, errors=tuple(errors))


DECODERS = dict(_decoders())
