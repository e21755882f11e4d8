"""Digests of contents, files, weights and configurations.

All are 128 bits of BLAKE2 as 32 hex digits. Weight files of many gigabytes are sampled (header and 256 blocks), since
two fine-tuned models share the header but not the values; a model in memory is read completely, at about a second per
gigabyte.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PretrainedConfig

BLOCK = 4096  # bytes
BLOCKS = 256
SAMPLED_VALUES = 1024  # per parameter
# Entries of a configuration that do not change what the model computes: origin, storage, decoding.
_NOT_COMPUTATION = (
    "_name_or_path", "name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache", "architectures",
    "auto_map", "id2label", "label2id", "return_dict", "output_attentions", "output_hidden_states", "_commit_hash",
    "_attn_implementation", "_attn_implementation_autoset", "bos_token_id", "eos_token_id", "pad_token_id",
    "task_specific_params",
)  # fmt: skip
# Entries of adapter_config.json that do not change what the adapter computes.
ADAPTER_BOOKKEEPING = ("base_model_name_or_path", "revision", "inference_mode", "auto_mapping", "peft_version")


def digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def digest_json(value: Any) -> str:
    """Return the digest of data that JSON can represent, independent of the order of its keys."""
    return digest(json.dumps(value, sort_keys=True, ensure_ascii=False, default=str).encode(errors="surrogatepass"))


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def weight_files(directory: Path) -> list[dict[str, Any]]:
    """Return name, size and sampled digest of every weight file: safetensors if there are any, else .bin."""
    found = sorted(directory.glob("*.safetensors")) or sorted(directory.glob("*.bin"))
    return [{"file": f.name, "bytes": f.stat().st_size, "digest": _sampled_digest(f)} for f in found]


def model_directory_digest(directory: Path) -> str:
    """Return the digest of a saved model: its weight files, sampled, and its JSON and template files, complete."""
    described = sorted([*directory.glob("*.json"), *directory.glob("*.jinja"), *directory.glob("*.model")])
    return digest_json([weight_files(directory), [[file.name, file_digest(file)] for file in described]])


def weights_digest(parameters: Iterable[tuple[str, "Tensor"]]) -> str:
    """Return the digest of all values of named parameters, in the order of their names."""
    import torch

    total = hashlib.blake2b(digest_size=16)
    for name, parameter in sorted(parameters, key=lambda pair: pair[0]):
        values = parameter.detach().reshape(-1).contiguous().cpu()
        total.update(f"{name}{tuple(parameter.shape)}{parameter.dtype}".encode())
        total.update(values.view(torch.uint8).numpy().data)
    return total.hexdigest()


def sampled_weights_digest(parameters: Iterable[tuple[str, "Tensor"]]) -> str | None:
    """Return the digest of up to SAMPLED_VALUES values of each parameter; None if a process holds only a part of one.

    It tells two models apart in milliseconds per gigabyte: fine-tunes of one model differ in nearly every value.
    """
    import torch

    total = hashlib.blake2b(digest_size=16)
    for name, parameter in sorted(parameters, key=lambda pair: pair[0]):
        if is_partial(parameter):
            return None
        flat = parameter.detach().reshape(-1)
        stride = max(1, len(flat) // SAMPLED_VALUES)
        values = flat[::stride].contiguous().cpu()
        total.update(f"{name}{tuple(parameter.shape)}{parameter.dtype}".encode())
        total.update(values.view(torch.uint8).numpy().data)
    return total.hexdigest()


def is_partial(parameter: "Tensor") -> bool:
    """Whether this process holds only a part of a parameter, under ZeRO-3 or FSDP2."""
    return hasattr(parameter, "ds_id") or hasattr(parameter, "full_tensor")


def config_digest(config: "PretrainedConfig") -> str:
    """Return the digest of the entries that determine the computation: shapes, rope, norms, activation, caps."""
    return digest_json(_computation(config.to_diff_dict()))


def config_file_digest(path: Path, overrides: Mapping[str, Any]) -> str:
    """Return the same digest of a config.json with some keys replaced, independent of the version of transformers."""
    return digest_json(_computation(json.loads(path.read_bytes()) | dict(overrides)))


def _computation(values: Any) -> Any:
    """The entries of a configuration that determine what the model computes."""
    if isinstance(values, dict):
        return {
            str(name): _computation(value)
            for name, value in values.items()
            if name not in _NOT_COMPUTATION and not re.search("dropout|initializer", str(name))
        }
    if isinstance(values, list | tuple):
        return [_computation(value) for value in values]
    return values


def _sampled_digest(path: Path) -> str:
    """Return the digest of a safetensors header and of 256 blocks spread over the file; all blocks of a small file."""
    size = path.stat().st_size
    parts = []
    with path.open("rb") as file:
        header = int.from_bytes(file.read(8), "little")
        if path.suffix == ".safetensors":
            parts.append(file.read(min(header, size)))
        count = min(BLOCKS, math.ceil(size / BLOCK))
        last = max(size - BLOCK, 0)
        for i in range(count):
            file.seek(round(i * last / max(count - 1, 1)))
            parts.append(file.read(BLOCK))
    return digest(b"".join(parts))
