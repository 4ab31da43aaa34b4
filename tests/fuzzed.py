"""The readers of files and messages that others may have spoilt: real inputs for each, what may be changed in them, and how they refuse."""

import functools
import json
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from configs.load import ConfigError, load_settings
from distributed.errors import RemoteFailure
from distributed.machine import Alive, Probe, Started, Stopped, Tail, find_answer, understood
from distributed.transport import Completed, LocalTransport
from games import load_game
from games.pgn import read_pgn
from tests.training.example_reports import evaluation, iteration, worker
from tests.training.fuzz_records import ODD_VALUES, Random, damage
from tests.training.small_run import GAME, NETWORK, model_bytes, small_settings
from training.checkpoint import INDEX, CorruptCheckpoint, read_checkpoint, write_checkpoint
from training.evaluation.away import decode_result
from training.evaluation.orders import MatchOrder, PlayedOrder
from training.files import sha256_hex
from training.learner import LearnerState
from training.model_delta import encode_delta, expand_delta
from training.model_file import PREFIX, open_model, seal, sha256_of
from training.model_weights import CorruptModel
from training.observers.files import UnreadableStats, read_stats
from training.pgn_games import games_of_pgn
from training.sgf_games import games_of_sgf
from training.weights_file import CorruptWeights, load_weights, save_weights
from training.worker_folder import Assignment, BrokenMessage, Heartbeat, WorkerFolder

FOLDER = tempfile.TemporaryDirectory(prefix="keima-fuzz-")
PLACE = Path(FOLDER.name)
ODD = (*ODD_VALUES, 1e308, -1e308, "NaN", "1e999", "\x1b[2J", "$(id)", "a\nb", " ", "٣", "../" * 40 + "etc/passwd", [[]], [None] * 5)
NONCE = "0123456789abcdef"
PGN = """[Event "x"]
[White "A \\"quoted\\" one"]
[Result "1-0"]

1. e4 {a comment} e5 2. Bc4 (2. Nf3 Nc6 (2... d6)) Nc6 $1 3. Qh5 Nf6?? 4. Qxf7# 1-0

[Event "y"]
[FEN "4k3/8/8/8/8/8/8/R3K3 w Q - 0 1"]
[SetUp "1"]

1. O-O-O+ Kf7 1/2-1/2
"""


SGF = "(;FF[4]GM[1]SZ[5]KM[7.5]PB[a\\]b]RE[W+R];B[cc];W[bb](;B[dd]C[x:y];W[])(;B[aa]))(;GM[1]SZ[5]KM[7];B[cc];W[];B[]RE[B+17.5])"


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """One reader.

    Args:
        bases: real inputs.
        change: spoils one.
        read: reads one, and uses what was let in.
        errors: what it may raise; nothing where it reports what is bad otherwise.
    """

    bases: list[bytes]
    change: Callable[[Random, bytes], bytes]
    read: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]


def forge(random: Random, value: Any) -> Any:
    """The same JSON with something odd somewhere in it."""
    if isinstance(value, dict) and value and random.random() < 0.85:
        key, way = str(random.choice(list(value))), random.random()
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
            return value * int(random.integers(2, 50))
        return [*value[:place], forge(random, value[place]), *value[place + 1 :]]
    if isinstance(value, int | float) and random.random() < 0.3:
        return value + int(random.integers(-3, 4))
    if isinstance(value, str) and value and random.random() < 0.3:
        return damage(random, value.encode("utf-8", "replace")).decode("utf-8", "surrogateescape")
    return ODD[random.integers(len(ODD))]


def spoil_json(random: Random, data: bytes) -> bytes:
    """Bits and lengths, or something odd somewhere, or hardly any JSON."""
    way = random.random()
    if way < 0.3:
        return damage(random, data)
    if way < 0.35:
        return b"[" * int(random.integers(1, 60_000))
    if way < 0.4:
        return b'{"a":' * int(random.integers(1, 10_000)) + b"1"
    value = json.loads(data)
    for _ in range(random.integers(1, 4)):
        value = forge(random, value)
    return dumped(value)


def dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


def or_damage(change: Callable[[Random, bytes], bytes]) -> Callable[[Random, bytes], bytes]:
    """As ``change``, or for every third input an accident."""
    return lambda random, data: damage(random, data) if random.random() < 0.33 else change(random, data)


# Models.


@functools.cache
def base_model() -> Any:
    return open_model(model_bytes(1))


def spoil_model(random: Random, data: bytes) -> bytes:
    """Another header with a right checksum, or other weights with one."""
    content = open_model(data)
    words = tuple(row.copy() for row in content.words)
    head = content.head
    if random.random() < 0.7:
        raw = spoil_json(random, content.head[PREFIX.size :])
        magic, number, _ = PREFIX.unpack_from(content.head)
        head = PREFIX.pack(magic, number, len(raw)) + raw
    else:
        row = words[random.integers(len(words))]
        if row.size:
            row[random.integers(row.size)] = random.integers(np.iinfo(row.dtype).max, dtype=row.dtype, endpoint=True)
    return seal(replace(content, head=head, words=words, sha256=sha256_of(head, words)))


def read_model(data: bytes) -> object:
    return open_model(data).model().build(GAME)


def read_delta(data: bytes) -> object:
    return expand_delta(data, base_model()).model()


# Messages and files of a run.


def in_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """Reads from a file what it is given."""

    def reader(data: bytes) -> object:
        path = PLACE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return read(path)

    return reader


def heartbeat() -> bytes:
    return Heartbeat(run_id="run", worker="w", beat=3, pid=7, state="playing", note="n", order="o", speed=3.0).model_dump_json().encode()


def order() -> MatchOrder:
    numbers = {"seed": 1, "opening_plies": 2, "match_pairs": 4, "first_pair": 0, "pairs": 2, "num_simulations": 8}
    return MatchOrder.model_validate({"id": "a-1", "first": {"version": 1, "sha256": "a" * 64}, "second": None, **numbers})


def assignment() -> bytes:
    return (
        Assignment(
            run_id="run",
            worker="w",
            lease="1",
            lease_seconds=60.0,
            granted=10,
            delivered=0,
            model_version=1,
            model_sha256="0" * 64,
            game="tic_tac_toe",
            options={},
            search=small_settings(PLACE).search,
            seed=1,
            parallel_games=4,
            cache_positions=0,
            batch_games=10,
            flush_seconds=None,
            matches=(order(),),
        )
        .model_dump_json()
        .encode()
    )


def result() -> bytes:
    moves = ((0, 1, 2, 3, 4, 5, 6),) * 4
    return PlayedOrder(worker="w", order=order(), openings="0" * 64, moves=moves, scores=(1.0, 0.0, 0.5, 1.0)).model_dump_json().encode()


def checkpoint() -> bytes:
    """A checkpoint's files in one JSON."""
    folder = PLACE / "whole"
    folder.mkdir(exist_ok=True)
    tensors = {"network": {"a": torch.zeros(2, 3)}, "optimizer": {"b": torch.ones(4)}}
    write_checkpoint(folder, LearnerState(tensors, {"steps": 3}), {"iteration": 1, "total_games": 5})
    return dumped({path.name: path.read_bytes().hex() for path in folder.iterdir()})


def spoil_checkpoint(random: Random, data: bytes) -> bytes:
    """One file of it: an accident, or an index that says something else, or tensors that are, with right checksums."""
    files = {name: bytes.fromhex(text) for name, text in json.loads(data).items()}
    name = str(random.choice(list(files)))
    if random.random() < 0.3:
        files[name] = damage(random, files[name])
    else:
        content = json.loads(json.loads(files[INDEX])["content"])
        if name == INDEX:
            text = spoil_json(random, dumped(content)).decode("utf-8", "replace")
        else:
            files[name] = damage(random, files[name])
            content["groups"][name.partition(".")[0]] = sha256_hex(files[name])
            text = json.dumps(content)
        files[INDEX] = dumped({"sha256": sha256_hex(text.encode()), "content": text})
    return dumped({name: each.hex() for name, each in files.items()})


def read_checkpoint_files(data: bytes) -> object:
    folder = PLACE / "spoilt"
    folder.mkdir(exist_ok=True)
    for name, text in json.loads(data).items():
        (folder / name).write_bytes(bytes.fromhex(text))
    return read_checkpoint(folder)


def config() -> bytes:
    return yaml.safe_dump(small_settings(Path("runs")).model_dump(mode="json"), sort_keys=False).encode()


def spoil_config(random: Random, data: bytes) -> bytes:
    """Other settings, or tricks that YAML knows."""
    if random.random() < 0.8:
        return spoil_json(random, dumped(yaml.safe_load(data)))
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


def weights() -> bytes:
    path = PLACE / "weights.pth"
    save_weights(path, {"a": torch.zeros(2, 3), "b": torch.ones(4)})
    return path.read_bytes()


def stats() -> bytes:
    return dumped([iteration(number, measured=evaluation(number), workers=(worker(),)).as_dict() for number in (1, 2)])


def spoil_text(random: Random, data: bytes) -> bytes:
    """Accidents, and words that mean something, where they do not belong."""
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
        data = data[:place] + words[random.integers(len(words))] + data[place:] if random.random() < 0.6 else damage(random, data)
    return data


def read_games(path: Path) -> object:
    chess = load_game("chess", max_plies=60)
    return [*read_pgn(path.read_text("utf-8", "replace").splitlines()), *games_of_pgn(path, chess)]


def read_go(path: Path) -> object:
    return [*games_of_sgf(path, load_game("go", size=5))]


# Answers of machines.


def answers() -> list[bytes]:
    probe = {
        "root": "/home/u/keima",
        "writable": True,
        "disk_free": 10**10,
        "python": {"path": "/usr/bin/python3", "version": [3, 11, 2], "packages": {"torch": "2.0", "numpy": None}},
        "platform": "Linux",
        "machine": "x86_64",
        "cpus": 2,
        "memory": 2**34,
        "gpus": [{"index": 0, "name": "G", "memory": 2**34}],
        "gpu_trouble": "",
        "kills_processes": False,
        "clock": 1e9,
        "boot_id": "b",
        "code": {".": "abc"},
        "whole": ["."],
    }
    found = [probe, {"pid": 1, "start_ticks": 2, "boot_id": "b", "already": True}, {"found": True, "killed": False}]
    found += [{"running": True, "pid": 3, "code": None}, {"text": "log", "end": 3}]
    return [dumped({"ok": each}) for each in found]


def read_answer(data: bytes) -> object:
    answer = find_answer("w", Completed(0, b"noise\n@@" + NONCE.encode() + b" " + data + b"\n", b""), NONCE)
    transport, read = LocalTransport(PLACE, worker="w"), []
    for kind in (Probe, Started, Stopped, Alive, Tail):
        try:
            read.append(understood(transport, kind, answer.get("ok")))
        except RemoteFailure:
            continue
    if not read:
        raise RemoteFailure("w", "it is no answer to anything")
    return read


def _decoders() -> Iterable[tuple[str, Decoder]]:
    folder = WorkerFolder(PLACE / "folder").make()
    delta = encode_delta(open_model(model_bytes(2)), base_model())
    assert delta and NETWORK
    yield "model", Decoder(bases=[model_bytes(1)], change=or_damage(spoil_model), read=read_model, errors=(CorruptModel,))
    yield "delta", Decoder(bases=[delta], change=damage, read=read_delta, errors=(CorruptModel,))
    read = in_file("folder/worker.json", lambda path: folder.read_heartbeat())
    yield "worker.json", Decoder(bases=[heartbeat()], change=spoil_json, read=read, errors=(BrokenMessage,))
    read = in_file("folder/inbox/assignment.json", lambda path: folder.read_assignment())
    yield "assignment", Decoder(bases=[assignment()], change=spoil_json, read=read, errors=(BrokenMessage,))
    yield "match", Decoder(bases=[result()], change=spoil_json, read=decode_result, errors=(ValueError,))
    yield (
        "checkpoint",
        Decoder(bases=[checkpoint()], change=spoil_checkpoint, read=read_checkpoint_files, errors=(CorruptCheckpoint,)),
    )
    yield "config", Decoder(bases=[config()], change=or_damage(spoil_config), read=in_file("c.yaml", load_settings), errors=(ConfigError,))
    yield "weights", Decoder(bases=[weights()], change=damage, read=in_file("w.pth", load_weights), errors=(CorruptWeights,))
    yield "stats", Decoder(bases=[stats()], change=spoil_json, read=in_file("s.json", read_stats), errors=(UnreadableStats,))
    yield "pgn", Decoder(bases=[PGN.encode()], change=spoil_text, read=in_file("g.pgn", read_games), errors=())
    yield "sgf", Decoder(bases=[SGF.encode()], change=spoil_text, read=in_file("g.sgf", read_go), errors=())
    yield "machine", Decoder(bases=answers(), change=spoil_json, read=read_answer, errors=(RemoteFailure,))


DECODERS = dict(_decoders())
