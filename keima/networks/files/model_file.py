"""Model files: the one module through which the rest of the program reads and writes them.

- ``model_codec``: models with their weights, as small transfer files for workers and as safetensors on disk.
- ``model_content``: the content of a transfer file, without torch.
- ``model_delta``: one model as its difference from another, without torch.
- ``model_weights``: weights as the words of a transfer file.
- ``weights_file``: state dictionaries and trees of tensors as files of PyTorch.

``model_heading`` tells which model a file holds without importing torch, so programs import it directly; so does
whoever sends models but has no network (``keima.worker.model_push``) with the two others that do without.
"""

from keima.networks.files.model_codec import (
    CANARY_POSITIONS,
    Model,
    canary_positions,
    check_canary,
    decode_model,
    describe_model,
    encode_model,
    load_safetensors,
    model_in,
    save_safetensors,
)
from keima.networks.files.model_content import (
    MAX_MODEL_BYTES,
    Canary,
    Content,
    CorruptModel,
    ModelLimits,
    TensorEntry,
    open_model,
    seal,
    sha256_of,
)
from keima.networks.files.model_delta import encode_delta, expand_delta
from keima.networks.files.model_heading import content_sha256
from keima.networks.files.weights_file import (
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
    "model_in",
    "open_model",
    "read_tree",
    "save_safetensors",
    "save_tree",
    "save_weights",
    "seal",
    "sha256_of",
    "tree_bytes",
]
