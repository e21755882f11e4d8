"""The model under evaluation: what identifies it, which backend draws from it, loaded only when a sample is missing."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from qsft.data.prompts import Prompt, encode
from qsft.evals.protocol import Sampling, context_of
from qsft.evals.sample import Sampler
from qsft.fingerprints import config_digest, digest_json, model_directory_digest, weights_digest

if TYPE_CHECKING:
    from qsft.evals.sample_vllm import VllmSampler

BACKENDS = ("auto", "transformers", "vllm")


@dataclass
class ModelUnderTest:
    """A model by path, by hub id, or in memory (with its tokenizer), and how to draw from it."""

    model: str | Path | PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None = None
    backend: str = "auto"
    dtype: str = "auto"
    batch_size: int | None = None
    tensor_parallel_size: int = 1
    engine: Mapping[str, Any] = field(default_factory=dict)  # further arguments of vLLM's engine
    seed_requests: bool = True
    device: str | torch.device | None = None
    processes: int = 1
    positions: int | None = None  # the longest prompt and response together, where known
    _engine: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise ValueError(f"unknown backend {self.backend!r}; choose one of {', '.join(BACKENDS)}.")
        if self.in_memory is not None and self.tokenizer is None:
            raise ValueError("a model in memory needs its tokenizer: evaluate(model, tokenizer=tokenizer, …).")
        installed = find_spec("vllm") is not None
        if self.backend == "auto":
            served = self.in_memory is None and not Path(str(self.model), "adapter_config.json").is_file()
            self.backend = "vllm" if served and installed and torch.cuda.is_available() else "transformers"
        if self.backend == "vllm" and self.processes > 1 and self.tensor_parallel_size > 1:
            sizes = f"{self.processes} processes, which have a GPU each, leave none for --tensor_parallel_size"
            raise ValueError(f"{sizes} {self.tensor_parallel_size}. Start one process, or leave the option out.")
        if self.backend != "vllm" and (self.engine or not self.seed_requests):
            raise ValueError("--engine and --no_request_seeds are vLLM's. Leave them out, or set --backend vllm.")
        if self.backend == "vllm" and not installed:
            raise ValueError("the backend vllm is not installed. pip install 'qsft[vllm]', or --backend transformers.")
        dtype = getattr(torch, self.dtype, None)
        if self.dtype != "auto" and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise ValueError(f"unknown dtype {self.dtype!r}; choose auto, float32, bfloat16 or float16.")
        self.device = torch.device(self.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        if self.in_memory is not None:
            self.dtype = str(self.in_memory.dtype).removeprefix("torch.")
        elif self.dtype == "auto":
            self.dtype = "bfloat16" if self.device.type == "cuda" else "float32"
        _ = self.config  # a name that is no model's is refused now, not after the tasks were read

    @property
    def in_memory(self) -> PreTrainedModel | None:
        return self.model if isinstance(self.model, torch.nn.Module) else None

    @property
    def name(self) -> str:
        return str(self.model) if self.in_memory is None else self.in_memory.name_or_path or "model in memory"

    @cached_property
    def config(self) -> Any:
        return self.in_memory.config if self.in_memory else of_the_model(AutoConfig, self.name, option="qsft eval")

    def about(self) -> dict[str, Any]:
        # Whether batching leaves samples as they are: only float32, seeded here, is close enough to exact.
        independent = self.backend == "transformers" and self.dtype == "float32"
        about = {"model": self.name, "context": context_of(self.config), "backend": self.backend, "dtype": self.dtype}
        return {**about, "independent": independent}

    def record(self) -> dict[str, Any]:
        """What must be the same for generations to be continued: the weights, the backend, the precision."""
        unseeded = {} if self.seed_requests else {"request_seeds": False}
        return {"model": self._identity(), "backend": self.backend, "dtype": self.dtype, **unseeded}

    def sampler(self, sampling: Sampling) -> "Sampler | VllmSampler":
        if self.backend == "vllm":
            from qsft.evals.sample_vllm import VllmSampler, start_engine

            limits = [size for size in (self.positions, context_of(self.config)) if size is not None]
            options = {"max_model_len": min(limits), **self.engine} if len(limits) == 2 else self.engine
            self._engine = self._engine or start_engine(self.name, self.dtype, self.tensor_parallel_size, options)
            return VllmSampler(self._engine, self._tokenizer(), sampling, seed_requests=self.seed_requests)
        if self._engine is None:
            loaded: Any = self.in_memory or AutoModelForCausalLM.from_pretrained(self.name, dtype=self.dtype)
            self._engine = loaded if self.in_memory else loaded.to(self.device)
        return Sampler(self._engine, self._tokenizer(), sampling, batch_size=self.batch_size)

    def limit_positions(self, prompts: Iterable[Prompt], max_new_tokens: int) -> None:
        """Let vLLM reserve room for these prompts and responses only: a context of 131k tokens fits no small card."""
        if self.backend == "vllm":
            needed = max(len(encode(self._tokenizer(), prompt)) for prompt in prompts) + max_new_tokens
            self.positions = max(needed, self.positions or 0)

    def _tokenizer(self) -> PreTrainedTokenizerBase:
        self.tokenizer = self.tokenizer or AutoTokenizer.from_pretrained(self.name)
        return self.tokenizer

    def _identity(self) -> str:
        if self.in_memory is not None:
            weights, template = self.in_memory.named_parameters(), getattr(self.tokenizer, "chat_template", None)
            return digest_json([weights_digest(weights), config_digest(self.config), template])
        if Path(self.name).is_dir():
            return model_directory_digest(Path(self.name))
        return f"{self.model}@{getattr(self.config, '_commit_hash', None)}"


def of_the_model(kind: Any, name: str, *, option: str, **how: Any) -> Any:
    """`kind.from_pretrained` (a configuration, a tokenizer) of a model's name, or an error that names it."""
    try:
        return kind.from_pretrained(name, **how)
    except OSError as error:
        raise FileNotFoundError(
            f"there is no model {name!r}: no directory here with its files, and the hub did not give one "
            f"({str(error).splitlines()[0]}). Check path or id; without a network give a local copy with {option} DIR."
        ) from error
