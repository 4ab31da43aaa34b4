"""Model files: the one module through which the rest of the program reads and writes them.

- ``model_codec``: small transfer files with a canary for workers, and safetensors on disk.
- ``model_delta``: one model as its difference from another.
- ``model_weights``: the packing of weights in both.
- ``weights_file``: state dictionaries and trees of tensors as files of PyTorch.

``model_heading`` tells which model a file holds without importing torch, so programs import it directly.
"""

from training.networks.model_codec import (
    CANARY_POSITIONS,
    MAX_MODEL_BYTES,
    Canary,
    Content,
    Model,
    canary_positions,
    check_canary,
    content_sha256,
    decode_model,
    describe_model,
    encode_model,
    load_safetensors,
    open_model,
    save_safetensors,
    seal,
    sha256_of,
)
from training.networks.model_delta import encode_delta, expand_delta
from training.networks.model_weights import CorruptModel, ModelLimits, TensorEntry
from training.networks.weights_file import (
    CorruptWeights,
    load_weights,
    read_tree,
    save_tree,
    save_weights,
    tree_bytes,
)

__all__ = [
    "CANARY_POSITIONS",
    "MAX_MODEL_BYTES",
    "Canary",
    "Content",
    "CorruptModel",
    "CorruptWeights",
    "Model",
    "ModelLimits",
    "TensorEntry",
    "canary_positions",
    "check_canary",
    "content_sha256",
    "decode_model",
    "describe_model",
    "encode_delta",
    "encode_model",
    "expand_delta",
    "load_safetensors",
    "load_weights",
    "open_model",
    "read_tree",
    "save_safetensors",
    "save_tree",
    "save_weights",
    "seal",
    "sha256_of",
    "tree_bytes",
]
