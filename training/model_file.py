"""Model files: small ones for the way to workers, and safetensors for the disk.

A file for the way is: the magic, the format number (16 bits), the header's length (32 bits), the header (JSON: which game and
network, the names, shapes and types of the tensors, the canary), one zstd frame with all weights, and the SHA-256 of everything
before it. Matrices and kernels travel in 16 bits; one-dimensional tensors, batch norm's among them, keep 32. Weights of one type
follow each other plane by plane, all low bytes first. A delta holds the weights XOR those of a base that the receiver has.

``decode_model`` trusts nobody, and the canary, a few positions with what the sender's network says of them, shows whether the
receiver's rules, network and processor say the same.
"""

import hashlib
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import safetensors
import torch
import zstandard
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError
from safetensors.torch import save
from torch import Tensor, nn

from games.game import Game
from training.columns import from_planes, to_planes
from training.files import write_atomically
from training.network import build_network

MAGIC = b"KEIMAMD\n"
FORMAT = 1
PREFIX = struct.Struct("<8sHI")  # magic, format number, length of the header
DIGEST_BYTES = 32
MAX_MODEL_BYTES = 256 * 2**20
CANARY_POSITIONS = 4
CANARY_ACTIONS = 16
METADATA = "keima"  # the key of our metadata in a safetensors file

Words = NDArray[np.unsignedinteger[Any]]
Evaluate = Callable[[NDArray[np.float32]], tuple[NDArray[np.float32], NDArray[np.float32]]]

# Types on the way, in the order of the frame: as torch has them, and as words that can be XORed.
DTYPES: dict[str, tuple[torch.dtype, type[np.unsignedinteger[Any]]]] = {
    "bfloat16": (torch.bfloat16, np.uint16),
    "float16": (torch.float16, np.uint16),
    "float32": (torch.float32, np.uint32),
    "int64": (torch.int64, np.uint64),
}


class CorruptModel(ValueError):
    """A model file is not what it should be: damaged, forged, of another game or network, or from another version of the program."""


class MissingBase(ValueError):
    """A delta was received whose base is not here; ask for the whole model."""


@dataclass(frozen=True, kw_only=True)
class ModelLimits:
    """The most that ``decode_model`` accepts."""

    max_bytes: int = MAX_MODEL_BYTES  # the whole file
    max_header_bytes: int = 2**20
    max_elements: int = 2**28  # of all tensors together


class Section(BaseModel):
    """Part of a header: it takes no unknown keys, and "3" is not 3."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


Name = Annotated[str, Field(max_length=200)]
Number = Annotated[int, Field(ge=0, lt=2**53)]
Scalar = bool | Annotated[int, Field(ge=-4096, le=4096)] | Annotated[float, Field(ge=-4096, le=4096)] | Name


class Description(Section):
    """What a model is, beside its weights."""

    game: Name
    options: Annotated[dict[Name, Scalar], Field(max_length=100)]
    rules_version: Number
    network: Annotated[dict[Name, Scalar], Field(max_length=100)]  # the arguments of ``build_network``
    model_version: Number


class Canary(Section):
    """What a network says of ``canary_positions``."""

    values: tuple[FiniteFloat, ...]  # [N]
    policy_logits: tuple[tuple[FiniteFloat, ...], ...]  # [N, up to CANARY_ACTIONS]


class TensorEntry(Section):
    """A tensor on the way."""

    name: Name
    shape: Annotated[tuple[Annotated[int, Field(ge=1, lt=2**32)], ...], Field(max_length=8)]
    dtype: Literal["bfloat16", "float16", "float32", "int64"]


class Base(Section):
    """The model that a delta is to be applied to."""

    model_version: Number
    sha256: Name  # of its weights as they travel


class Header(Section):
    """A file's header."""

    model: Description
    canary: Canary
    tensors: Annotated[tuple[TensorEntry, ...], Field(max_length=100_000)]
    base: Base | None


@dataclass(frozen=True, kw_only=True)
class Model:
    """A network's weights, and what is needed to play with them."""

    description: Description
    weights: Mapping[str, Tensor]  # the network's state dictionary, on the CPU
    canary: Canary | None = None  # only models that came as files for the way have one

    @property
    def model_version(self) -> int:
        """The number under which it was published."""
        return self.description.model_version

    def build(self, game: Game) -> nn.Module:
        """The network with copies of these weights.

        Raises:
            CorruptModel: the model is for another game, or the weights are not those of the network that it names.
        """
        wanted = self.description
        if (game.name, game.options, game.rules_version) != (wanted.game, wanted.options, wanted.rules_version):
            raise CorruptModel(
                f"it plays {wanted.game} {wanted.options} by rules version {wanted.rules_version}, not {game.name} {game.options} "
                f"by version {game.rules_version}: if only the version differs, update the older program"
            )
        try:
            with torch.device("meta"):  # nothing is allocated before names and shapes are known to fit
                network = build_network(game, **wanted.network)  # type: ignore[arg-type]
            network.load_state_dict({name: tensor.clone() for name, tensor in self.weights.items()}, assign=True)
        except (TypeError, ValueError, RuntimeError) as error:
            raise CorruptModel(f"the weights are not those of a network {wanted.network} for {wanted.game}: {error}") from error
        return network


def describe_model(game: Game, network: Mapping[str, Any], model_version: int) -> Description:
    """The description of a model for ``game`` whose network ``build_network(game, **network)`` builds."""
    return Description(
        game=game.name, options=game.options, rules_version=game.rules_version, network=dict(network), model_version=model_version
    )


def encode_model(model: Model, game: Game, *, dtype: Literal["bfloat16", "float16"] = "bfloat16", base: Model | None = None) -> bytes:
    """The model as the bytes of a file for the way.

    Args:
        dtype: of matrices and kernels. float16 is a fifth larger and eight times as fine, but ends at 65,504.
        base: the receiver's model, as it got it: only the difference is sent, two to three quarters of the bytes.

    Raises:
        CorruptModel: the weights do not belong to the network, or are not finite in ``dtype``.
        ValueError: the base has other tensors.
    """
    entries = tuple(_entry(name, tensor, dtype) for name, tensor in model.weights.items())
    columns = _columns(model.weights, entries)
    if base and not _alike(base, entries):
        raise ValueError(f"model {base.model_version} is no base for model {model.model_version}: it has other tensors")
    rounded = replace(model, weights=_tensors(columns, entries))
    _check_finite(rounded.weights)
    header = Header(model=model.description, canary=_canary(rounded, game), tensors=entries, base=_base(base, entries) if base else None)
    if base:
        columns = _xor(columns, _columns(base.weights, entries))
    planes = b"".join(to_planes(column).data for column in columns)
    raw = header.model_dump_json().encode()
    return seal(PREFIX.pack(MAGIC, FORMAT, len(raw)) + raw, planes)


def seal(head: bytes, planes: bytes | memoryview) -> bytes:
    """A file of what stands before the weights, and of the weights; of the same, the same version of zstd makes the same bytes."""
    frame = zstandard.ZstdCompressor(level=1).compress(planes)
    digest = hashlib.sha256(head)
    digest.update(frame)
    return b"".join((head, frame, digest.digest()))


def decode_model(data: bytes, *, base: Model | None = None, limits: ModelLimits = ModelLimits()) -> Model:
    """The model in a file's bytes, with its weights in float32.

    Args:
        base: the model that the receiver has, for a delta.

    Raises:
        CorruptModel: the file is damaged, of another format, over the limits, or its parts contradict each other.
        MissingBase: it is a delta, and ``base`` is not its base.
    """
    header, frame = _open(data, limits)
    columns = _unpack(frame, header.tensors, limits)
    if header.base is not None:
        if base is None or not _alike(base, header.tensors) or header.base != _base(base, header.tensors):
            raise MissingBase(f"model {header.model.model_version} is a delta to model {header.base.model_version}, which is not here")
        columns = _xor(columns, _columns(base.weights, header.tensors))
    weights = _tensors(columns, header.tensors)
    _check_finite(weights)
    return Model(description=header.model, weights=weights, canary=header.canary)


def _require(condition: Any, reason: str) -> None:
    if not condition:
        raise CorruptModel(reason)


def _open(data: bytes, limits: ModelLimits) -> tuple[Header, memoryview]:
    """The checked header, and the zstd frame."""
    view = memoryview(data)
    _require(len(view) <= limits.max_bytes, f"{len(view):,} bytes are more than the {limits.max_bytes:,} allowed")
    _require(len(view) >= PREFIX.size + DIGEST_BYTES, f"{len(view)} bytes are too few for a model")
    magic, number, header_bytes = PREFIX.unpack_from(view)
    _require(magic == MAGIC, "it does not begin like a model")
    older = "the program that wrote it" if number < FORMAT else "this program"
    _require(number == FORMAT, f"format {number} is not known here (this program reads format {FORMAT}): update {older}")
    body, digest = view[:-DIGEST_BYTES], view[-DIGEST_BYTES:]
    _require(hashlib.sha256(body).digest() == digest, "the checksum does not match: it was cut short or changed on its way")
    end = PREFIX.size + header_bytes
    _require(header_bytes <= limits.max_header_bytes and end <= len(body), f"a header of {header_bytes:,} bytes does not fit")
    try:
        return Header.model_validate_json(bytes(body[PREFIX.size : end])), body[end:]
    except ValidationError as error:
        first = error.errors()[0]
        raise CorruptModel(f"the header is wrong at {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def _unpack(frame: memoryview, entries: tuple[TensorEntry, ...], limits: ModelLimits) -> list[Words]:
    """The words of each type. Nothing is allocated before header and frame agree on how much there is."""
    _require(len({entry.name for entry in entries}) == len(entries), "two tensors have one name")
    counts = {dtype: sum(math.prod(entry.shape) for entry in entries if entry.dtype == dtype) for dtype in DTYPES}
    _require(sum(counts.values()) <= limits.max_elements, f"{sum(counts.values()):,} weights are more than {limits.max_elements:,}")
    sizes = {dtype: counts[dtype] * np.dtype(words).itemsize for dtype, (_, words) in DTYPES.items()}
    total = sum(sizes.values())
    try:
        declared = zstandard.get_frame_parameters(frame).content_size
        _require(declared == total, f"the header declares {total:,} bytes of weights, the zstd frame {declared:,}")
        raw = zstandard.ZstdDecompressor().decompress(frame, max_output_size=total, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptModel(f"the weights cannot be unpacked: {error}") from error
    _require(len(raw) == total, "the zstd frame holds less than it declares")
    columns, start = [], 0
    for dtype, (_, words) in DTYPES.items():
        columns.append(from_planes(memoryview(raw)[start : start + sizes[dtype]], words, counts[dtype]))
        start += sizes[dtype]
    return columns


def _entry(name: str, tensor: Tensor, dtype: Literal["bfloat16", "float16"]) -> TensorEntry:
    """How a tensor travels: whole numbers and one-dimensional tensors are few, and kept exactly."""
    if not tensor.is_floating_point():
        return TensorEntry(name=name, shape=tuple(tensor.shape), dtype="int64")
    return TensorEntry(name=name, shape=tuple(tensor.shape), dtype=dtype if tensor.ndim > 1 else "float32")


def _columns(weights: Mapping[str, Tensor], entries: tuple[TensorEntry, ...]) -> list[Words]:
    """All weights of each type as one row of words, rounded if need be."""
    columns = []
    for dtype, (number, words) in DTYPES.items():
        parts = [weights[entry.name].detach().cpu().to(number).contiguous().flatten() for entry in entries if entry.dtype == dtype]
        bits = torch.cat(parts).view(torch.uint8) if parts else torch.empty(0, dtype=torch.uint8)
        columns.append(bits.numpy().view(words))
    return columns


def _tensors(columns: list[Words], entries: tuple[TensorEntry, ...]) -> dict[str, Tensor]:
    """The tensors, in float32 (or int64), from the words of each type."""
    weights: dict[str, Tensor] = {}
    for (dtype, (number, _)), column in zip(DTYPES.items(), columns, strict=True):
        members = [entry for entry in entries if entry.dtype == dtype]
        if not members:
            continue
        row = torch.from_numpy(column.view(np.uint8)).view(number)
        wide = torch.int64 if number == torch.int64 else torch.float32
        parts = row.split([math.prod(entry.shape) for entry in members])
        weights |= {entry.name: part.to(wide, copy=True).reshape(entry.shape) for entry, part in zip(members, parts, strict=True)}
    return {entry.name: weights[entry.name] for entry in entries}


def _xor(columns: list[Words], base: list[Words]) -> list[Words]:
    return [np.bitwise_xor(column, other) for column, other in zip(columns, base, strict=True)]


def _alike(base: Model, entries: tuple[TensorEntry, ...]) -> bool:
    """Whether a base has the same tensors."""
    return {name: tuple(tensor.shape) for name, tensor in base.weights.items()} == {entry.name: entry.shape for entry in entries}


def _base(base: Model, entries: tuple[TensorEntry, ...]) -> Base:
    """What names a base: its version, and the hash of its weights as they travelled."""
    digest = hashlib.sha256()
    for column in _columns(base.weights, entries):
        digest.update(column.tobytes())
    return Base(model_version=base.model_version, sha256=digest.hexdigest())


def _check_finite(weights: Mapping[str, Tensor]) -> None:
    # The extremes show it, in one pass: NaN is both.
    wrong = next((name for name, tensor in weights.items() if not torch.stack(tensor.aminmax()).isfinite().all()), None)
    _require(wrong is None, f"tensor {wrong} holds numbers that are infinite or undefined")


def canary_positions(game: Game, count: int = CANARY_POSITIONS) -> NDArray[np.float32]:
    """The observations ``[count, C, H, W]`` of positions from arbitrary games that are the same everywhere."""
    word, state = 1, game.initial_state()
    observations: list[NDArray[np.float32]] = []
    while len(observations) < count:
        observations.append(game.observe(state))
        for _ in range(3):
            actions = game.legal_actions(state)
            if len(actions) == 0:
                state = game.initial_state()
                continue
            word = (word * 6364136223846793005 + 1442695040888963407) % 2**64
            game.play(state, int(actions[(word >> 33) % len(actions)]))
    return np.stack(observations)


def _some_actions(policy_logits: NDArray[np.float32]) -> NDArray[np.float32]:
    return policy_logits[:, :: -(-policy_logits.shape[1] // CANARY_ACTIONS)]


def _canary(model: Model, game: Game) -> Canary:
    with torch.inference_mode():
        logits, value_logits = model.build(game).eval()(torch.from_numpy(canary_positions(game)))
    values = torch.tanh(value_logits / 2).tolist()
    some = np.round(_some_actions(logits.numpy()).astype(np.float64), 5).tolist()
    return Canary(values=tuple(round(value, 5) for value in values), policy_logits=tuple(map(tuple, some)))


def check_canary(model: Model, game: Game, evaluate: Evaluate, *, tolerance: float = 0.05) -> None:
    """Compare what ``evaluate`` says of the canary's positions with what the sender's network said.

    Args:
        tolerance: the difference allowed, as a share of the largest logit (or of 1). 16-bit arithmetic stays below a third of this;
            wrong weights, rules or planes are far beyond it.

    Raises:
        CorruptModel: they differ by more.
    """
    assert model.canary is not None
    logits, values = evaluate(canary_positions(game))
    wanted_logits, wanted_values = np.array(model.canary.policy_logits), np.array(model.canary.values)
    some = _some_actions(logits)
    _require(some.shape == wanted_logits.shape and values.shape == wanted_values.shape, "the canary is of another game")
    allowed = tolerance * max(1.0, float(np.abs(wanted_logits).max()))
    off = max(float(np.abs(some - wanted_logits).max()) / allowed, float(np.abs(values - wanted_values).max()) / tolerance)
    # Written so that NaN is refused.
    _require(off <= 1, f"the network here says {off:.1f} times the allowed difference from what the sender's says of known positions")


def save_safetensors(path: Path, model: Model) -> None:
    """Write the model, in full precision, to a safetensors file with its description as metadata."""
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.weights.items()}
    write_atomically(path, save(weights, {METADATA: model.description.model_dump_json()}))


def load_safetensors(path: Path) -> Model:
    """Read what ``save_safetensors`` wrote.

    Raises:
        CorruptModel: the file is damaged or is no model of ours; the message names it.
        OSError: it is missing or unreadable.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (the file is no dictionary)
            metadata = file.metadata() or {}
        description = Description.model_validate_json(metadata.get(METADATA, ""))
    except (safetensors.SafetensorError, ValidationError) as error:
        raise CorruptModel(f"{path} is not a model file: {error}") from error
    return Model(description=description, weights=weights)
