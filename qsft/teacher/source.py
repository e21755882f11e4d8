"""Where a capture's teacher comes from, and where its cache goes when nobody says otherwise.

A teacher is a model, a path or a hub id; remote code is never run. Caches lie outside of OUTPUT_DIR, one folder per
identity: a new output_dir captures nothing again, several teachers live side by side, and no upload of OUTPUT_DIR takes
the shards along, which hold training text.

    $QSFT_CACHE, else $QSFT_HOME/caches, else $XDG_CACHE_HOME/qsft, else ~/.cache/qsft
        teachers/<name>-<digest of teacher, tokenizer, k, encoding>/
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from transformers.integrations import deepspeed as hf_deepspeed
from transformers.utils import cached_file

from qsft import fingerprints
from qsft.losses.head import base_causal_lm
from qsft.processes import local_rank
from qsft.teacher.identity import Vocabulary, refuse_small_head, teacher_difference
from qsft.teacher.manifest import MANIFEST, read_manifest

LEFTOVER = "teacher_cache"  # where caches lay before: inside of OUTPUT_DIR
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json"),
    *("spiece.model", "spm.model", "sentencepiece.bpe.model"),
)


class TeacherSource:
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
        self._dtype = _dtype(named["dtype"] or named["torch_dtype"] or dtype)
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
            with whole_in_every_process():
                self._model = AutoModelForCausalLM.from_pretrained(
                    self.name, revision=self._revision, dtype=self._dtype or "auto", **self._model_kwargs
                )
            self._device = self._device or default_device()
        placed = "device_map" in self._model_kwargs or getattr(self._model, "hf_device_map", None)
        if self._device is not None and not placed:
            self._model.to(self._device)
        return self._model

    def refuse_other_tokenizer(self, vocabulary: Vocabulary) -> int:
        """How many ids the teacher's tokenizer shares with that of the data; ValueError when they disagree."""
        if self.in_memory:  # its tokenizer is not known; its head must have rows for the tokens
            refuse_small_head(head_rows(self._model), vocabulary.words, f"the teacher {self.name}")
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


@contextmanager
def whole_in_every_process() -> Iterator[None]:
    """Models loaded inside are whole, though the student's would not be.

    ZeRO-3 would give each process a part. FSDP's RAM-efficient loading would give zeros to all but the first process
    of a machine, for weights that are broadcast when the model is wrapped; a teacher is never wrapped.
    """
    reference, name = hf_deepspeed._hf_deepspeed_config_weak_ref, "FSDP_CPU_RAM_EFFICIENT_LOADING"
    config, efficient = reference() if reference is not None else None, os.environ.pop(name, None)
    hf_deepspeed.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        if config is not None:
            hf_deepspeed.set_hf_deepspeed_config(config)
        if efficient is not None:
            os.environ[name] = efficient


def weights_digest(model: nn.Module) -> str:
    """Digest of every value at about a second per gigabyte; of a PEFT model whose adapters are off, of its base's."""
    off = [module for module in model.modules() if getattr(module, "disable_adapters", False) is True]
    adapters = {name.split(".")[0] for module in off for name in module.adapter_layer_names}  # type: ignore[union-attr]
    named = (base_causal_lm(model) if off else model).named_parameters()
    acting = [(name, parameter) for name, parameter in named if not adapters.intersection(name.split("."))]
    if off:
        acting = [(re.sub(r"\b(base_layer|original_module)\.", "", name), parameter) for name, parameter in acting]
    return fingerprints.weights_digest(acting)


def head_rows(model: Any) -> int:
    causal_lm: Any = base_causal_lm(model)
    return len(causal_lm.get_output_embeddings().weight)


def default_device() -> torch.device:
    """This process's accelerator, or the CPU."""
    return torch.device("cuda", local_rank()) if torch.cuda.is_available() else torch.device("cpu")


def dtype_name(dtype: torch.dtype) -> str:
    """'bfloat16' for torch.bfloat16."""
    return str(dtype).removeprefix("torch.")


def _dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if dtype not in (None, "auto") and not isinstance(found, torch.dtype):
        raise ValueError(f"dtype {dtype!r} is not one of torch's; say 'bfloat16', 'float16' or 'float32'.")
    return found


# ---- where its cache goes ----


def cache_home() -> Path:
    for name, below in (("QSFT_CACHE", ""), ("QSFT_HOME", "caches"), ("XDG_CACHE_HOME", "qsft")):
        if os.environ.get(name):
            return Path(os.environ[name], below).expanduser()
    return Path("~/.cache/qsft").expanduser()


def default_cache(
    source: TeacherSource, tokenizer: PreTrainedTokenizerBase, *, output_dir: str | Path | None = None, **settings: Any
) -> Path:
    """The directory for a teacher's cache with these settings of `build_cache`, the same wherever its files are.

    A matching OUTPUT_DIR/teacher_cache of an earlier version is used where it is. Of a hub model the commit decides,
    of a directory the weight files, of a model in memory its weights; the configuration in any case.
    """
    settings = {"top_p": None, "min_k": 1} | settings
    teacher = source.describe()
    if output_dir is not None and _matches(Path(output_dir, LEFTOVER), teacher, settings | source.asked_dtype):
        return Path(output_dir, LEFTOVER)
    is_hub = not source.in_memory and not Path(source.name).is_dir()
    evidence = ("name", "revision") if is_hub else ("weights",) if source.in_memory else ("files",)
    config = teacher["config_file"] or teacher["config"]
    vocabulary = Vocabulary.of(tokenizer).about["digest"]
    identity = [{name: teacher[name] for name in evidence}, config, vocabulary, settings, source.asked_dtype]
    return cache_home() / "teachers" / f"{_slug(source.name)}-{fingerprints.digest_json(identity)[:16]}"


def _matches(directory: Path, teacher: dict[str, Any], settings: dict[str, Any]) -> bool:
    """Whether a cache is there that this teacher may continue under these settings."""
    if not (directory / MANIFEST).is_file():
        return False
    identity = read_manifest(directory).identity
    wanted = settings | {"k": min(settings["k"], identity.vocab_size)}
    same = all(getattr(identity, name) == value for name, value in wanted.items())
    return same and teacher_difference(identity.teacher, teacher) is None


def _slug(name: str) -> str:
    """A teacher's name as part of a directory's: of a path its last folder, of a hub id both parts."""
    short = Path(name).name if Path(name).exists() else name
    return re.sub(r"[^A-Za-z0-9._-]+", "--", short).strip("-.")[-64:] or "teacher"
