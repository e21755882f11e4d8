"""A transformers model as the teacher: an nn.Module in memory, a directory, or a Hub id."""

import re
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoTokenizer
from transformers.utils import cached_file

from qsft import fingerprints
from qsft.inference.loading import default_device, dtype_name, load_model, parse_dtype
from qsft.losses.head import base_causal_lm
from qsft.teacher.identity import Vocabulary, check_head_size
from qsft.teacher.log_probs import head_size

TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json"),
    *("spiece.model", "spm.model", "sentencepiece.bpe.model"),
)


class TransformersSource:
    """A teacher that is loaded when its first row is needed, and can be named before."""

    def __init__(
        self,
        teacher: str | Path | nn.Module,
        *,
        dtype: str | torch.dtype | None = None,
        revision: str | None = None,
        device: str | torch.device | None = None,
        model_kwargs: dict[str, Any] | None = None,
    ) -> None:
        self._model = teacher if isinstance(teacher, nn.Module) else None
        config = getattr(teacher, "config", None)
        self.name = str(getattr(config, "_name_or_path", "") or type(teacher).__name__) if self._model else str(teacher)
        self.in_memory, self._weights = self._model is not None, ""
        # What from_pretrained takes beside the rest is told to it once, and the cache's identity must see it.
        self._model_kwargs = dict(model_kwargs or {})
        named = {name: self._model_kwargs.pop(name, None) for name in ("dtype", "torch_dtype", "revision")}
        self._dtype = parse_dtype(named["dtype"] or named["torch_dtype"] or dtype)
        self._revision, self._device = named["revision"] or revision, device

    @property
    def asked_dtype(self) -> dict[str, str]:
        """{"dtype": name} when one was asked for; the teacher's own is known once it is loaded."""
        return {} if self._dtype is None or self.in_memory else {"dtype": dtype_name(self._dtype)}

    def describe(self) -> dict[str, Any]:
        """Name, revision, weight files, configuration and, once the model is there, a digest of all its weights."""
        about: dict[str, Any] = {"name": self.name, "revision": self._revision, "files": []}
        about |= {"weights": None, "config_file": None}
        config: Any = getattr(self._model, "config", None)
        if not self.in_memory:
            found = AutoConfig.from_pretrained(self.name, revision=self._revision)
            about["revision"] = getattr(found, "_commit_hash", None) or self._revision
            config_file = Path(str(cached_file(self.name, "config.json", revision=self._revision)))
            about["files"] = fingerprints.weight_files(config_file.parent)  # none of a model not yet downloaded
            overrides = {name: value for name, value in self._model_kwargs.items() if hasattr(found, name)}
            about["config_file"] = fingerprints.config_file_digest(config_file, overrides)
            config = config or found
        about["config"] = fingerprints.config_digest(config)
        if self._model is not None:
            self._weights = self._weights or weights_digest(self._model)
            about["weights"] = self._weights
        return about

    def load(self) -> nn.Module:
        """The teacher, in its own dtype and, if it was given as a model, where it is, unless others were asked for."""
        if self._model is None:
            self._model = load_model(self.name, dtype=self._dtype, revision=self._revision, **self._model_kwargs)
            self._device = self._device or default_device()
        placed = "device_map" in self._model_kwargs or getattr(self._model, "hf_device_map", None)
        if self._device is not None and not placed:
            self._model.to(self._device)
        return self._model

    def check_same_tokenizer(self, vocabulary: Vocabulary) -> int:
        """How many ids the teacher's tokenizer shares with that of the data; ValueError when they disagree."""
        if self._model is not None and self.in_memory:
            check_head_size(head_size(self._model), vocabulary.words, f"the teacher {self.name}")
            return vocabulary.size
        own = self._tokenizer()
        return vocabulary.shared_with(
            vocabulary.content if own is None else Vocabulary.of(own).content,
            f"the tokenizer of the data is not the one of the teacher {self.name}",
            "tokenise the data with the teacher's tokenizer, or choose a teacher that shares the student's.",
        )

    def _tokenizer(self) -> Any:
        """The teacher's own tokenizer; None for a directory of weights alone, for which transformers may invent one."""
        quiet = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
        try:
            if any(cached_file(self.name, file, revision=self._revision, **quiet) for file in TOKENIZER_FILES):
                return AutoTokenizer.from_pretrained(self.name, revision=self._revision)
        except (OSError, ValueError, KeyError):
            pass  # remote code, or a format of another library: nothing that could be compared
        return None


def weights_digest(model: nn.Module) -> str:
    """Digest of every value at about a second per gigabyte; of a PEFT model whose adapters are off, of its base's."""
    off = [module for module in model.modules() if getattr(module, "disable_adapters", False) is True]
    adapters = {name.split(".")[0] for module in off for name in module.adapter_layer_names}  # type: ignore[union-attr]
    named = (base_causal_lm(model) if off else model).named_parameters()
    acting = [(name, parameter) for name, parameter in named if not adapters.intersection(name.split("."))]
    if off:
        acting = [(re.sub(r"\b(base_layer|original_module)\.", "", name), parameter) for name, parameter in acting]
    return fingerprints.weights_digest(acting)
