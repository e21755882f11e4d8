"""A transformers model as the teacher: a model in memory, a directory, a Hub id, or a PEFT adapter."""

import dataclasses
import enum
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils.memory import should_reduce_batch_size
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedTokenizerBase
from transformers.utils import cached_file

from qsft import fingerprints
from qsft.files import read_json
from qsft.inference.loading import (
    DOWNLOAD_ARGUMENTS,
    adapter_base,
    config_file,
    default_device,
    dtype_name,
    has_device_map,
    input_device,
    load_config,
    load_model,
    load_tokenizer,
    looks_like_path,
    parse_dtype,
)
from qsft.losses.evaluation_mode import evaluating
from qsft.losses.head import base_causal_lm
from qsft.processes import rank, world_size
from qsft.targets.view import IGNORED
from qsft.teacher.format.encoding import TopKArrays
from qsft.teacher.log_probs import check_teacher_head, head_size, teacher_log_probs
from qsft.teacher.sources.source import Replica, TeacherSource
from qsft.teacher.vocabulary import Vocabulary, check_head_size

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "tekken.json",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
)
# Arguments of from_pretrained that say where files come from and where weights go. All others may change numbers.
ARGUMENTS_WITHOUT_EFFECT = frozenset(
    {
        "cache_dir", "device_map", "force_download", "local_files_only", "low_cpu_mem_usage", "max_memory",
        "offload_buffers", "offload_folder", "offload_state_dict", "output_loading_info", "proxies", "resume_download",
        "token", "tp_plan", "tp_size", "trust_remote_code", "use_auth_token", "use_cache", "use_safetensors",
        "weights_only",
    }
)  # fmt: skip
ENOUGH_MEMORY = 1 / 3  # share of a GPU's memory below which larger batches would help


class TransformersSource(TeacherSource):
    """A causal LM that is loaded when its first log-probs are needed, and can be identified before.

    Args:
        teacher: a model, or the directory or Hub id of a model or of a PEFT adapter.
        dtype: of the weights; by default that of the checkpoint. Ignored for a model in memory.
        revision: of a Hub id.
        device: by default this process's accelerator; a model in memory stays where it is.
        model_kwargs: further arguments of `from_pretrained`. `dtype` and `revision` among them win.
    """

    def __init__(
        self,
        teacher: str | Path | nn.Module,
        *,
        dtype: str | torch.dtype | None = None,
        revision: str | None = None,
        device: str | torch.device | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        model_kwargs = dict(model_kwargs or {})
        requested = [model_kwargs.pop("dtype", None), model_kwargs.pop("torch_dtype", None), dtype]
        self._dtype = parse_dtype(next((value for value in requested if value is not None), None))
        self._revision = model_kwargs.pop("revision", None) or revision
        self._device = device
        self._model_kwargs = model_kwargs
        self._weights_digest: str | None = None
        self._head_checked = False
        self._batch_parts = 1  # that a batch is computed in; doubled when the memory is exhausted
        self.in_memory = isinstance(teacher, nn.Module)
        if isinstance(teacher, nn.Module):
            self._model: nn.Module | None = teacher
            config: Any = getattr(teacher, "config", None)
            self.name = str(getattr(config, "_name_or_path", "") or type(teacher).__name__)
        else:
            self._model = None
            self.name = str(teacher)

    # ---- identity ----

    @property
    def replica(self) -> Replica:
        return Replica(rank(), world_size())

    @property
    def requested_dtype(self) -> str | None:
        return None if self._dtype is None or self.in_memory else dtype_name(self._dtype)

    def describe(self) -> dict[str, Any]:
        if self._model is not None and self._weights_digest is None:
            self._weights_digest = weights_digest(self._model)
        if self.in_memory:
            return {
                "name": self.name,
                "revision": None,
                "files": [],
                "config_file": None,
                "config": _computation_digest(self._model),
                "weights": self._weights_digest,
                "loading": None,
                "base": None,
            }
        base = self._adapter_base()
        if base is None:
            description = self._describe_files(self.name, self._revision)
            base_description = None
        else:
            description = self._describe_adapter()
            base_description = self._describe_files(*base)
        config_digest = description["config"] if self._model is None else _computation_digest(self._model)
        return description | {
            "config": config_digest,
            "weights": self._weights_digest,
            "loading": loading_arguments(self._model_kwargs),
            "base": base_description,
        }

    def location_key(self) -> Any:
        description = self.describe()
        if self.in_memory:
            return [description["weights"], description["config"]]
        parts = [description] if description["base"] is None else [description, description["base"]]
        evidence = [_location_evidence(part) for part in parts]
        return [evidence, description["loading"], self.requested_dtype or self._own_dtype()]

    def shared_ids(self, vocabulary: Vocabulary) -> int:
        """See TeacherSource; of a model in memory the tokenizer is not known, so only its head is checked."""
        if self._model is not None and self.in_memory:
            check_head_size(head_size(self._model), vocabulary.base_tokens, f"the teacher {self.name}")
            return vocabulary.size
        own = self.tokenizer()
        if own is None:
            return vocabulary.size
        return vocabulary.count_shared_ids(
            Vocabulary.of(own).content,
            problem=f"the tokenizer of the data does not match the one of the teacher {self.name}",
            remedy="tokenize the data with the teacher's tokenizer, or choose a teacher that shares the student's.",
        )

    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The teacher's own tokenizer; None for weights alone, for which transformers may invent one."""
        places = [(self.name, self._revision)]
        base = self._adapter_base()
        if base is not None:
            places.append(base)
        for name, revision in places:
            try:
                if self._has_tokenizer_files(name, revision):
                    return load_tokenizer(name, revision=revision, **self._hub_arguments)
            except (OSError, ValueError, KeyError):
                return None  # remote code, or a format of another library: nothing that could be compared
        return None

    # ---- computing ----

    def load(self) -> nn.Module:
        """Return the teacher, in its own dtype and on its device unless others were requested."""
        if self._model is None:
            self._check_exists()
            self._device = self._device or default_device()
            self._model = load_model(self.name, dtype=self._dtype, revision=self._revision, **self._model_kwargs)
        _check_adapter_kind(self._model, self.name)
        if self._device is not None and not has_device_map(self._model) and "device_map" not in self._model_kwargs:
            self._model.to(self._device)
        return self._model

    @property
    def dtype(self) -> str:
        return dtype_name(next(self.load().parameters()).dtype)

    @property
    def vocab_size(self) -> int:
        return head_size(self.load())

    def log_probs(self, documents: Sequence[np.ndarray], top_k: int) -> TopKArrays:
        """See TeacherSource. A batch that does not fit into memory is computed in halves, as are those after it."""
        model = self.load()
        batch = {name: tensor.to(input_device(model)) for name, tensor in pad_documents(documents).items()}
        with evaluating(model):
            if not self._head_checked:
                check_teacher_head(model, input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
                self._head_checked = True
            while True:
                try:
                    return self._log_probs_in_parts(model, batch, top_k)
                except RuntimeError as error:
                    if not isinstance(error, torch.OutOfMemoryError) and not should_reduce_batch_size(error):
                        raise
                    self._reduce_batch(batch, error)

    def advice(self) -> str | None:
        device = input_device(self.load())
        if device.type == "cpu":
            return "the teacher computes on a CPU; a GPU is a hundred times faster. A cache may be built elsewhere."
        used = memory_share(device)
        if used > ENOUGH_MEMORY:
            return None
        return f"the teacher uses {used:.0%} of its GPU's memory. Raise teacher_batch_tokens (--batch_tokens)."

    def _log_probs_in_parts(self, model: nn.Module, batch: dict[str, Tensor], top_k: int) -> TopKArrays:
        size = self._part_size(batch)
        parts: list[Any] = []
        for start in range(0, len(batch["input_ids"]), size):
            part = {name: tensor[start : start + size] for name, tensor in batch.items()}
            parts.append(teacher_log_probs(model, top_k, **part))
        return TopKArrays.concatenate(parts)

    def _part_size(self, batch: dict[str, Tensor]) -> int:
        return -(-len(batch["input_ids"]) // self._batch_parts)

    def _reduce_batch(self, batch: dict[str, Tensor], error: RuntimeError) -> None:
        size = self._part_size(batch)
        width = batch["input_ids"].shape[1]
        if size == 1:
            raise torch.OutOfMemoryError(
                f"one document of {width} tokens does not fit the teacher's memory. Load it in bfloat16, "
                "spread it with model_kwargs={'device_map': 'auto'}, or shorten max_length."
            ) from error
        self._batch_parts *= 2
        torch.cuda.empty_cache()
        print(
            f"the teacher ran out of memory with {size} documents of {width} tokens: batches are computed in "
            f"{self._batch_parts} parts from now on (batch_tokens sets their size).",
            file=sys.stderr,
        )

    # ---- files ----

    @property
    def _download(self) -> dict[str, Any]:
        return {name: self._model_kwargs[name] for name in DOWNLOAD_ARGUMENTS if name in self._model_kwargs}

    @property
    def _hub_arguments(self) -> dict[str, Any]:
        """Arguments for loading a configuration or a tokenizer."""
        return {"trust_remote_code": self._model_kwargs.get("trust_remote_code"), **self._download}

    def _check_exists(self) -> None:
        if looks_like_path(self.name) and not Path(self.name).exists():
            raise FileNotFoundError(
                f"there is no directory {self.name}, neither of a teacher model nor of its cache. Check the path."
            )

    def _adapter_base(self) -> tuple[str, str | None] | None:
        self._check_exists()
        return adapter_base(self.name, self._revision, **self._download)

    def _describe_files(self, name: str, revision: str | None) -> dict[str, Any]:
        """What is known of a model without loading it; no files of a model that is not downloaded yet."""
        config = load_config(name, revision=revision, **self._hub_arguments)
        file, commit = config_file(name, revision=revision, **self._download)
        return {
            "name": name,
            "revision": commit or revision,
            "files": fingerprints.weight_files(file.parent),
            "config": fingerprints.config_digest(config),
            "config_file": fingerprints.config_file_digest(file, {}),
        }

    def _describe_adapter(self) -> dict[str, Any]:
        file, commit = config_file(self.name, "adapter_config.json", revision=self._revision, **self._download)
        digest = _adapter_digest(read_json(file, "Save the adapter again."))
        return {
            "name": self.name,
            "revision": commit or self._revision,
            "files": fingerprints.weight_files(file.parent),
            "config": digest,
            "config_file": digest,
        }

    def _own_dtype(self) -> str:
        """The dtype of the checkpoint, "auto" where its configuration does not say it."""
        name, revision = self._adapter_base() or (self.name, self._revision)
        dtype = load_config(name, revision=revision, **self._hub_arguments).dtype
        return dtype_name(dtype) if isinstance(dtype, torch.dtype) else str(dtype or "auto")

    def _has_tokenizer_files(self, name: str, revision: str | None) -> bool:
        quiet = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
        return any(cached_file(name, file, revision=revision, **self._download, **quiet) for file in TOKENIZER_FILES)


def loading_arguments(model_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `from_pretrained` that may change a model's numbers, as JSON.

    >>> loading_arguments({"attn_implementation": "eager", "device_map": "auto"})
    {'attn_implementation': 'eager'}
    """
    names = sorted(set(model_kwargs) - ARGUMENTS_WITHOUT_EFFECT)
    return {name: _as_json(name, model_kwargs[name]) for name in names if model_kwargs[name] is not None}


def _as_json(name: str, value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    if isinstance(value, enum.Enum):
        return _as_json(name, value.value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, PretrainedConfig):
        return fingerprints.config_digest(value)
    if isinstance(value, Mapping):
        return {str(key): _as_json(name, value[key]) for key in sorted(value, key=str)}
    if isinstance(value, list | tuple | set | frozenset):
        parts = [_as_json(name, part) for part in value]
        return sorted(parts, key=str) if isinstance(value, set | frozenset) else parts
    if hasattr(value, "to_dict"):  # quantization configurations of transformers
        return {"type": type(value).__name__, **_as_json(name, value.to_dict())}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {"type": type(value).__name__, **_as_json(name, dataclasses.asdict(value))}
    raise ValueError(
        f"the teacher's loading argument {name} is a {type(value).__name__}, which cannot be recorded in the identity "
        "of its cache. Pass plain values or a configuration object, or load the model yourself and pass it."
    )


def weights_digest(model: nn.Module) -> str:
    """Digest of every weight, at about a second per gigabyte; with disabled adapters only of the base's weights."""
    disabled = [module for module in model.modules() if getattr(module, "disable_adapters", False) is True]
    if not disabled:
        return fingerprints.weights_digest(model.named_parameters())
    adapter_layers = {name.split(".")[0] for module in disabled for name in module.adapter_layer_names}  # type: ignore[union-attr]
    base_weights = [
        (re.sub(r"\b(base_layer|original_module)\.", "", name), parameter)
        for name, parameter in base_causal_lm(model).named_parameters()
        if not adapter_layers.intersection(name.split("."))
    ]
    return fingerprints.weights_digest(base_weights)


def _computation_digest(model: Any) -> str:
    """Digest of a loaded model's configuration, and of the adapters that act in it: weights do not show their scale."""
    config_digest = fingerprints.config_digest(model.config)
    disabled = any(getattr(module, "disable_adapters", False) is True for module in model.modules())
    adapters = getattr(model, "peft_config", None)
    if disabled or not adapters:
        return config_digest
    settings = {name: _adapter_digest(config.to_dict()) for name, config in adapters.items()}
    return fingerprints.digest_json([config_digest, settings])


def _adapter_digest(settings: Mapping[str, Any]) -> str:
    kept = {name: value for name, value in settings.items() if name not in fingerprints.ADAPTER_BOOKKEEPING}
    return fingerprints.digest_json(_as_json("adapter_config", kept))


def _location_evidence(description: dict[str, Any]) -> dict[str, Any]:
    """Of a Hub model its commit, of a directory its weight files, and the configuration of both."""
    names = ("files",) if Path(description["name"]).is_dir() else ("name", "revision")
    return {name: description[name] for name in (*names, "config_file")}


def _check_adapter_kind(model: nn.Module, name: str) -> None:
    adapters: Any = getattr(model, "peft_config", None) or {}
    if getattr(model, "_adapters_disabled", False):  # a student that is its own base
        return
    for config in adapters.values():
        if getattr(config, "is_prompt_learning", False):
            raise ValueError(
                f"the teacher {name} is a {config.peft_type} adapter. Prompt learning puts virtual tokens before the "
                "prompt, which a teacher's log-probs cannot follow; use a LoRA adapter or a complete model."
            )


def pad_documents(documents: Sequence[np.ndarray]) -> dict[str, Tensor]:
    """Documents [2, T] as one batch, padded on the right."""
    shape = (len(documents), max(document.shape[1] for document in documents))
    input_ids = np.zeros(shape, np.int64)
    labels = np.full(shape, IGNORED, np.int64)
    attention_mask = np.zeros(shape, np.int64)
    for row, document in enumerate(documents):
        length = document.shape[1]
        input_ids[row, :length] = document[0]
        labels[row, :length] = document[1]
        attention_mask[row, :length] = 1
    return {
        "input_ids": torch.from_numpy(input_ids),
        "labels": torch.from_numpy(labels),
        "attention_mask": torch.from_numpy(attention_mask),
    }


def memory_share(device: torch.device) -> float:
    """How much of a GPU's memory this process held at its peak; 1 where that is not known."""
    if device.type != "cuda":
        return 1.0
    return torch.cuda.max_memory_allocated(device) / torch.cuda.get_device_properties(device).total_memory
