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
    save_safetensors,
    unpack_model,
)
from keima.networks.files.model_content import (
    MAX_MODEL_BYTES,
    Canary,
    Content,
    CorruptModel,
    ModelLimits,
    TensorEntry,
    decode_content,
    encode_content,
    sha256_of,
)
from keima.networks.files.model_delta import encode_delta, expand_delta
from keima.networks.files.model_heading import stored_sha256
from keima.networks.files.weights_file import (
    CorruptWeights,
    decode_tree,
    encode_tree,
    load_weights,
    save_tree,
    save_weights,
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
    "decode_content",
    "decode_model",
    "decode_tree",
    "describe_model",
    "encode_content",
    "encode_delta",
    "encode_model",
    "encode_tree",
    "expand_delta",
    "load_safetensors",
    "load_weights",
    "save_safetensors",
    "save_tree",
    "save_weights",
    "sha256_of",
    "stored_sha256",
    "unpack_model",
]
