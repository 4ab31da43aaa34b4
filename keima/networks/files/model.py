"""Models with their weights: as transfer files for workers (``container``), and as safetensors on disk.

Transferred matrices and kernels have 16 bits; one-dimensional tensors, such as batch norm's, keep 32. ``decode_model``
checks everything. The canary, the answers of the sender's network for a few positions, shows whether
the receiver's rules, network and processor give the same answers.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from safetensors.torch import save
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from keima.base.files import write_atomically
from keima.config.own_modules import is_own
from keima.games.game import CHANCE, Game
from keima.networks.files.container import (
    LIMITS,
    WORD_TYPES,
    Canary,
    Content,
    CorruptModel,
    Description,
    Entries,
    Header,
    ModelLimits,
    TensorEntry,
    WordRows,
    count_words,
    decode_content,
    encode_content,
    iterate_tensors,
    require_valid,
)
from keima.networks.files.heading import METADATA
from keima.networks.network import build_network
from keima.networks.policy_value import as_policy_value_network

NUMBER_TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32, "int64": torch.int64}
CANARY_POSITIONS = 4
CANARY_ACTIONS = 16
LARGEST_CANARY_VALUE = 0.99999  # larger values are compared as this one: their logits are not precise

NetworkFunction = Callable[[NDArray[np.float32]], tuple[NDArray[np.float32], NDArray[np.float32]]]


class _WithoutNormals(TorchFunctionMode):
    """Within the block, no tensor is filled with normally distributed numbers.

    On the device meta there is nothing to fill, and PyTorch would import its compiler for it, which takes longer than
    everything else that a worker does before its first move.
    """

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if function in (nn.init.normal_, Tensor.normal_):
            return args[0] if args else given["tensor"]
        return function(*args, **given)


@dataclass(frozen=True, kw_only=True)
class Model:
    """A network's weights, with all that is needed to play with them."""

    description: Description
    weights: Mapping[str, Tensor]  # the network's state dictionary, on the CPU
    canary: Canary | None = None  # only models from transfer files have one

    @property
    def model_version(self) -> int:
        """The number under which it was published."""
        return self.description.model_version

    def build(self, game: Game, *, copy: bool = True) -> nn.Module:
        """Return the network with copies of these weights or, without ``copy``, with the weights themselves.

        Raises:
            CorruptModel: the model is for another game, or the weights do not fit the network that it names.
        """
        wanted = self.description
        if (game.name, game.options, game.rules_version) != (wanted.game, wanted.options, wanted.rules_version):
            raise CorruptModel(
                f"it plays {wanted.game} {wanted.options} by rules version {wanted.rules_version}, not {game.name} "
                f"{game.options} by version {game.rules_version}: if only the version differs, update the older program"
            )
        blocks = wanted.network.get("blocks")
        if isinstance(blocks, int) and blocks > len(self.weights):  # building them would take long
            raise CorruptModel(f"it has fewer tensors than blocks: {len(self.weights)}, and the network has {blocks}")
        try:
            # "meta" allocates nothing before names and shapes are checked. In a network of the user's own, tensors that
            # are no weights would stay without memory.
            place = "cpu" if is_own(str(wanted.network.get("type", ""))) else "meta"
            with torch.device(place), _WithoutNormals():
                network = build_network(game, **wanted.network)  # type: ignore[arg-type]
            network.load_state_dict(
                {name: tensor.clone() if copy else tensor for name, tensor in self.weights.items()}, assign=True
            )
        except (TypeError, ValueError, RuntimeError) as error:
            raise CorruptModel(
                f"the weights are not those of a network {wanted.network} for {wanted.game}: {error}"
            ) from error
        return network


def unpack_model(content: Content) -> Model:
    """Return the model in a file's content, with its weights in float32.

    Raises:
        CorruptModel: weights are not finite.
    """
    weights = decode_weights(content.words, content.header.tensors)
    return Model(description=content.header.model, weights=weights, canary=content.header.canary)


def describe_model(game: Game, network: Mapping[str, Any], model_version: int) -> Description:
    """Return the description of a model for ``game`` with the network of ``build_network(game, **network)``."""
    given = {key: value for key, value in network.items() if value is not None}
    return Description(
        game=game.name,
        options=game.options,
        rules_version=game.rules_version,
        network=given,
        model_version=model_version,
    )


def encode_model(
    model: Model, game: Game, *, dtype: Literal["bfloat16", "float16"] = "bfloat16", compressed: bool = True
) -> bytes:
    """Return the model as the bytes of a transfer file.

    Args:
        dtype: of matrices and kernels. float16 is a fifth larger and eight times as precise, but ends at 65,504.
        compressed: False saves computation and makes the file half as large again.

    Raises:
        CorruptModel: the weights do not belong to the network, or are not finite in ``dtype``.
    """
    entries = tuple(make_tensor_entry(name, tensor, dtype) for name, tensor in model.weights.items())
    words = encode_weights(model.weights, entries)
    canary = make_canary(replace(model, weights=decode_weights(words, entries)), game)
    header = Header(model=model.description, canary=canary, tensors=entries)
    content = Content(raw_header=header.model_dump_json().encode(), header=header, words=words)
    return encode_content(content, compressed=compressed)


def decode_model(data: bytes, *, limits: ModelLimits = LIMITS) -> Model:
    """Return the model in a file's bytes, with its weights in float32.

    Raises:
        CorruptModel: the file is damaged, of another format, over the limits, or its parts contradict each other.
    """
    return unpack_model(decode_content(data, limits=limits))


def make_tensor_entry(name: str, tensor: Tensor, dtype: Literal["bfloat16", "float16"]) -> TensorEntry:
    """Return how a tensor is transferred: whole numbers and one-dimensional tensors are few and keep all bits."""
    if not tensor.is_floating_point():
        return TensorEntry(name=name, shape=tuple(tensor.shape), dtype="int64")
    return TensorEntry(name=name, shape=tuple(tensor.shape), dtype=dtype if tensor.ndim > 1 else "float32")


def encode_weights(weights: Mapping[str, Tensor], entries: Entries) -> WordRows:
    """Return all weights, rounded if necessary.

    Tensor by tensor, so that intermediate results stay in the processor's caches.
    """
    counts = count_words(entries, LIMITS)
    words = tuple(np.empty(count, kind) for count, kind in zip(counts, WORD_TYPES.values(), strict=True))
    with use_one_thread():
        for entry, part in iterate_tensors(words, entries):
            values = weights[entry.name].detach().cpu().to(NUMBER_TYPES[entry.dtype]).contiguous().flatten()
            part[:] = values.view(torch.uint8).numpy().view(part.dtype)
    return words


def decode_weights(words: WordRows, entries: Entries) -> dict[str, Tensor]:
    """Return the tensors, in float32 (or int64). They share one block of memory: numpy uses large pages, which is much
    faster.

    Raises:
        CorruptModel: a tensor has numbers that are not finite.
    """
    row = torch.from_numpy(np.empty(sum(part.size for part in words), np.float32))
    start, weights = 0, dict[str, Tensor]()
    with use_one_thread():
        for entry, part in iterate_tensors(words, entries):
            number = NUMBER_TYPES[entry.dtype]
            values = torch.from_numpy(part.view(np.uint8)).view(number)
            if number.is_floating_point:
                # One pass: infinities are extremes, and NaN makes both extremes NaN.
                finite = torch.stack(values.aminmax()).isfinite().all()
                require_valid(finite, f"tensor {entry.name} has infinite or undefined numbers")
                values = row[start : start + len(values)].copy_(values)
                start += len(values)
            weights[entry.name] = values.reshape(entry.shape)
    return {entry.name: weights[entry.name] for entry in entries}


@contextmanager
def use_one_thread() -> Iterator[None]:
    """Within the block, torch uses one thread: with more, each of many small operations waits for all threads, which
    takes long when other programs keep cores busy.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def canary_positions(game: Game, count: int = CANARY_POSITIONS) -> NDArray[np.float32]:
    """Return the observations ``[count, C, H, W]`` of positions from arbitrary games, the same on all machines."""
    word, state = 1, game.initial_state()
    observations: list[NDArray[np.float32]] = []
    while len(observations) < count:
        observations.append(game.observe(state))
        for _ in range(3):
            actions = (
                game.legal_actions(state) if game.current_player(state) != CHANCE else game.chance_outcomes(state)[0]
            )
            if len(actions) == 0:
                state = game.initial_state()
                continue
            word = (word * 6364136223846793005 + 1442695040888963407) % 2**64
            game.play(state, int(actions[(word >> 33) % len(actions)]))
    return np.stack(observations)


def _select_actions(policy_logits: NDArray[np.float32]) -> NDArray[np.float32]:
    return policy_logits[:, :: -(-policy_logits.shape[1] // CANARY_ACTIONS)]


def make_canary(model: Model, game: Game) -> Canary:
    """Return the answers of the model's network for ``canary_positions``."""
    with torch.inference_mode(), use_one_thread():
        network = model.build(game, copy=False).eval()
        logits, value_logits = network(torch.from_numpy(canary_positions(game)))
    values = as_policy_value_network(network).value.values(value_logits).ravel().tolist()
    some = np.round(_select_actions(logits.numpy()).astype(np.float64), 5).tolist()
    return Canary(values=tuple(round(value, 5) for value in values), policy_logits=tuple(map(tuple, some)))


def check_canary(model: Model, game: Game, evaluate: NetworkFunction, *, tolerance: float = 0.05) -> None:
    """Compare ``evaluate`` on the canary's positions with the answers of the sender's network.

    Args:
        model: with its canary.
        game: that it plays.
        evaluate: observations -> policy logits and values.
        tolerance: the allowed difference, as a share of the largest logit (or of 1), for policies and values each.
            16-bit arithmetic stays below a third of this; wrong weights, rules or planes are far beyond it.

    Raises:
        CorruptModel: they differ by more.
    """
    assert model.canary is not None
    logits, values = evaluate(canary_positions(game))
    values = values.ravel()
    wanted_logits, wanted_values = np.array(model.canary.policy_logits), np.array(model.canary.values)
    some = _select_actions(logits)
    require_valid(
        some.shape == wanted_logits.shape and values.shape == wanted_values.shape, "the canary is of another game"
    )
    allowed = tolerance * max(1.0, float(np.abs(wanted_logits).max()))
    if game.num_players > 1:
        # Half of the largest logit, because a value changes by at most half as much as its logit.
        largest = float(np.arctanh(np.clip(np.abs(wanted_values), 0.0, LARGEST_CANARY_VALUE)).max())
    else:
        largest = 2 * float(np.abs(wanted_values).max())  # points differ by twice as much as their roots
    allowed_value = tolerance * max(1.0, largest)
    off = max(
        float(np.abs(some - wanted_logits).max()) / allowed, float(np.abs(values - wanted_values).max()) / allowed_value
    )
    # Written so that NaN is rejected.
    require_valid(
        off <= 1,
        f"on known positions the network here differs from the sender's by {off:.1f} times the allowed difference",
    )


def save_safetensors(path: Path, model: Model, *, compact: bool = False) -> None:
    """Write the model in full precision to a safetensors file with its description as metadata.

    Args:
        path: the file.
        model: the model.
        compact: write tensors in 16 bits if that is exact, as for all weights transferred in 16 bits; this halves the
            size.
    """
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.weights.items()}
    if compact:
        weights = {name: _to_16_bits(tensor) for name, tensor in weights.items()}
    write_atomically(path, save(weights, {METADATA: model.description.model_dump_json()}))


def _to_16_bits(tensor: Tensor) -> Tensor:
    short = tensor.to(torch.bfloat16)
    return short if tensor.is_floating_point() and torch.equal(short.to(tensor.dtype), tensor) else tensor


def load_safetensors(path: Path) -> Model:
    """Read a file of ``save_safetensors``, with its weights in float32.

    Raises:
        CorruptModel: the file is damaged or not a model of this program; the message names it.
        OSError: it is missing or unreadable.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dictionary)
            metadata = file.metadata() or {}
        description = Description.model_validate_json(metadata.get(METADATA, ""))
    except safetensors.SafetensorError as error:
        remedy = "it was cut short, changed in transfer, or is not a safetensors file; copy it again"
        raise CorruptModel(f"{path} is not a model file: {remedy} ({error})") from error
    except ValidationError as error:
        remedy = "it does not name its game; keima export writes models of this program"
        raise CorruptModel(f"{path} is not a model file: {remedy}") from error
    return Model(description=description, weights={name: _to_float32(tensor) for name, tensor in weights.items()})


def _to_float32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor
