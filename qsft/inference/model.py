"""A model to sample from: what identifies it, which backend runs it. It is loaded when the first sample is drawn."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from qsft.fingerprints import config_digest, digest_json, model_directory_digest, weights_digest
from qsft.inference import loading
from qsft.inference.sampling import Sampling
from qsft.inference.transformers_sampler import TransformersSampler
from qsft.inference.vllm_engine import EngineOptions, start_engine
from qsft.inference.vllm_sampler import VllmSampler
from qsft.validation import check_choice

BACKENDS = ("auto", "transformers", "vllm")
Sampler = TransformersSampler | VllmSampler


@dataclass
class InferenceModel:
    """A model by path, by hub id, or in memory (then with its tokenizer), and how it is run.

    Args:
        backend: auto (vLLM where it is installed and a GPU is available), transformers or vllm.
        dtype: auto is bfloat16 on a GPU and float32 elsewhere.
        batch_size: sequences at once with transformers; None is as many as memory allows.
        engine: options of vLLM's engine; `dtype` and `max_model_len` are filled in.
        seed_requests: vLLM: give every sample its own seed.
        num_processes: processes of this launch; each has a GPU of its own.
    """

    model: str | Path | PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None = None
    backend: str = "auto"
    dtype: str = "auto"
    batch_size: int | None = None
    engine: EngineOptions = field(default_factory=EngineOptions)
    seed_requests: bool = True
    device: str | torch.device | None = None
    num_processes: int = 1
    _loaded: Any = field(default=None, repr=False)  # a model or a vLLM engine

    def __post_init__(self) -> None:
        check_choice("backend", self.backend, BACKENDS)
        if self.in_memory is not None and self.tokenizer is None:
            raise ValueError("a model in memory needs its tokenizer: evaluate(model, tokenizer=tokenizer, …).")
        vllm_installed = find_spec("vllm") is not None
        if self.backend == "auto":
            usable = vllm_installed and torch.cuda.is_available() and self.in_memory is None and not self.is_adapter
            self.backend = "vllm" if usable else "transformers"
        if self.backend == "vllm":
            self._check_vllm(vllm_installed)
        elif self.engine.engine_args or self.engine.tensor_parallel_size > 1 or not self.seed_requests:
            raise ValueError(
                "--engine, --tensor_parallel_size and --no_request_seeds are options of vLLM, but this model runs with "
                "transformers. Remove them, or set --backend vllm."
            )
        self.device = torch.device(self.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.dtype = self._resolve_dtype()
        self.engine = replace(self.engine, dtype=self.dtype)
        _ = self.config  # a wrong name raises here, before any task is read

    def _check_vllm(self, installed: bool) -> None:
        if not installed:
            raise ValueError("vLLM is not installed. Run pip install 'qsft[vllm]', or set --backend transformers.")
        if self.num_processes > 1 and self.engine.tensor_parallel_size > 1:
            raise ValueError(
                f"--tensor_parallel_size {self.engine.tensor_parallel_size} with {self.num_processes} processes: each "
                "process has one GPU. Start a single process, or remove the option."
            )

    def _resolve_dtype(self) -> str:
        if self.in_memory is not None:
            return loading.dtype_name(self.in_memory.dtype)
        dtype = loading.parse_dtype(self.dtype)
        if dtype is None:
            return "bfloat16" if torch.device(self.device or "cpu").type == "cuda" else "float32"
        return loading.dtype_name(dtype)

    @property
    def in_memory(self) -> PreTrainedModel | None:
        return self.model if isinstance(self.model, torch.nn.Module) else None

    @property
    def is_adapter(self) -> bool:
        """Whether the model is a directory with a PEFT adapter."""
        return self.in_memory is None and Path(self.name, "adapter_config.json").is_file()

    @property
    def name(self) -> str:
        if self.in_memory is None:
            return str(self.model)
        return self.in_memory.name_or_path or "model in memory"

    @cached_property
    def config(self) -> Any:
        if self.in_memory is not None:
            return self.in_memory.config
        base = loading.adapter_base(self.name)
        return loading.load_config(self.name if base is None else base[0])

    @property
    def context_length(self) -> int | None:
        return loading.context_length(self.config)

    @property
    def samples_are_reproducible(self) -> bool:
        """Whether batching and resuming leave samples unchanged: in float32, seeded by the transformers sampler."""
        return self.backend == "transformers" and self.dtype == "float32"

    def identity(self) -> dict[str, Any]:
        """What must be equal for generations to be continued: the weights, the backend, the precision."""
        identity: dict[str, Any] = {"model": self._weights_identity(), "backend": self.backend, "dtype": self.dtype}
        if not self.seed_requests:
            identity["request_seeds"] = False
        return identity

    def sampler(self, sampling: Sampling) -> Sampler:
        """A sampler with these settings; the model is loaded once."""
        if self.backend == "vllm":
            if self._loaded is None:
                self._loaded = start_engine(self.name, self.engine)
            return VllmSampler(self._loaded, self.load_tokenizer(), sampling, seed_requests=self.seed_requests)
        if self._loaded is None:
            self._loaded = self.in_memory or self._load_weights()
        return TransformersSampler(self._loaded, self.load_tokenizer(), sampling, batch_size=self.batch_size)

    def _load_weights(self) -> Any:
        try:
            return loading.load_model(self.name, dtype=getattr(torch, self.dtype), device=self.device)
        except UnpicklingError as error:
            raise ValueError(
                f"the weights of {self.name} are a pickle that contains more than tensors, so it was not loaded: it "
                "could run code. If you trust it, load it elsewhere and save it with `model.save_pretrained(…)`, which "
                "writes safetensors."
            ) from error

    def limit_context(self, prompts: Iterable[Sequence[int]], max_new_tokens: int) -> None:
        """Let vLLM reserve memory for these prompts and responses only: a context of 131k tokens fits no small GPU."""
        if self.backend != "vllm" or self.context_length is None:
            return
        needed = max(map(len, prompts)) + max_new_tokens
        longest = max(needed, self.engine.max_model_len or 0)
        self.engine = replace(self.engine, max_model_len=min(longest, self.context_length))

    def load_tokenizer(self) -> PreTrainedTokenizerBase:
        if self.tokenizer is None:
            self.tokenizer = loading.load_tokenizer(self.name)
        return self.tokenizer

    def _weights_identity(self) -> str:
        if self.in_memory is not None:
            template = getattr(self.tokenizer, "chat_template", None)
            weights = weights_digest(self.in_memory.named_parameters())
            return digest_json([weights, config_digest(self.config), template])
        if self.is_adapter:
            base = loading.adapter_base(self.name)
            assert base is not None
            adapter = model_directory_digest(Path(self.name))
            return digest_json([adapter, _stored_identity(base[0])])
        return _stored_identity(self.name)


def _stored_identity(name: str) -> str:
    """What identifies the weights of a directory or of a hub id."""
    if Path(name).is_dir():
        return model_directory_digest(Path(name))
    _, commit = loading.config_file(name)
    return f"{name}@{commit}"
