"""The model under evaluation: what identifies it, which backend draws from it, loaded only when a sample is missing."""

import importlib.util
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from qsft.data.prompts import Prompt, encode
from qsft.evals.protocol import Sampling
from qsft.evals.request import context_of
from qsft.evals.sample import Sampler
from qsft.fingerprints import config_digest, digest_json, model_directory_digest, weights_digest

BACKENDS = ("auto", "transformers", "vllm")


class AnySampler(Protocol):
    """What every backend offers: `sample(requests)`, and the context it keeps to."""

    context: int | None

    def sample(self, requests: Any) -> Any:
        """The responses as they finish."""
        ...


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
        if isinstance(self.model, torch.nn.Module) and self.tokenizer is None:
            raise ValueError("a model in memory needs its tokenizer: evaluate(model, tokenizer=tokenizer, …).")
        if self.backend == "auto":
            self.backend = "vllm" if self._vllm_fits() else "transformers"
        if self.backend == "vllm" and self.processes > 1 and self.tensor_parallel_size > 1:
            raise ValueError(
                f"{self.processes} processes have an engine and a GPU each, which leaves none for "
                f"--tensor_parallel_size {self.tensor_parallel_size}. Start one process, or leave the option out."
            )
        if self.backend != "vllm" and (self.engine or not self.seed_requests):
            raise ValueError("--engine and --no_request_seeds are vLLM's. Leave them out, or set --backend vllm.")
        if self.backend == "vllm" and not installed("vllm"):
            raise ValueError("the backend vllm is not installed. pip install 'qsft[vllm]', or --backend transformers.")
        check_dtype(self.dtype)
        _ = self.config  # a name that is no model's is refused now, not after the tasks were read

    def _vllm_fits(self) -> bool:
        path = not isinstance(self.model, torch.nn.Module)
        adapter = path and (Path(str(self.model)) / "adapter_config.json").is_file()
        return path and not adapter and installed("vllm") and torch.cuda.is_available()

    @property
    def name(self) -> str:
        """What a report calls the model."""
        return (
            str(self.model.name_or_path or "model in memory")
            if isinstance(self.model, PreTrainedModel)
            else str(self.model)
        )

    @property
    def independent(self) -> bool:
        """Whether batching leaves samples as they are: only float32, seeded here, is close enough to exact."""
        return self.backend == "transformers" and self._dtype_name() == "float32"

    @cached_property
    def config(self) -> Any:
        """The model's configuration."""
        if isinstance(self.model, torch.nn.Module):
            return self.model.config
        return of_the_model(AutoConfig, str(self.model), option="qsft eval")

    def about(self) -> dict[str, Any]:
        """What a report says about the model and how it was drawn from."""
        return {
            "model": self.name,
            "context": context_of(self.config),
            "backend": self.backend,
            "dtype": self._dtype_name(),
            "independent": self.independent,
        }

    def record(self) -> dict[str, Any]:
        """What must be the same for generations to be continued: the weights, the backend, the precision."""
        unseeded = {} if self.seed_requests else {"request_seeds": False}
        return {"model": self._identity(), "backend": self.backend, "dtype": self._dtype_name(), **unseeded}

    def sampler(self, sampling: Sampling) -> AnySampler:
        """A sampler of the model, which is loaded on the first call."""
        if self.backend == "vllm":
            from qsft.evals.sample_vllm import VllmSampler, start_engine

            name, dtype = str(self.model), self._dtype_name()
            self._engine = self._engine or start_engine(name, dtype, self.tensor_parallel_size, self._engine_options())
            return VllmSampler(self._engine, self._tokenizer(), sampling, seed_requests=self.seed_requests)
        if self._engine is None:
            self._engine = self.model if isinstance(self.model, torch.nn.Module) else self._load()
        return Sampler(self._engine, self._tokenizer(), sampling, batch_size=self.batch_size)

    def limit_positions(self, prompts: Iterable[Prompt], max_new_tokens: int) -> None:
        """Let vLLM reserve room for these prompts and responses only: a context of 131k tokens fits no small card."""
        if self.backend == "vllm":
            needed = max(len(encode(self._tokenizer(), prompt)) for prompt in prompts) + max_new_tokens
            self.positions = max(needed, self.positions or 0)

    def _engine_options(self) -> dict[str, Any]:
        context = context_of(self.config)
        if self.positions is None or context is None:
            return dict(self.engine)
        return {"max_model_len": min(self.positions, context), **self.engine}

    def _load(self) -> PreTrainedModel:
        model: Any = AutoModelForCausalLM.from_pretrained(str(self.model), dtype=self._dtype_name())
        model.to(self._device())
        return model  # type: ignore[no-any-return]

    def _tokenizer(self) -> PreTrainedTokenizerBase:
        if self.tokenizer is None:
            self.tokenizer = AutoTokenizer.from_pretrained(str(self.model))
        return self.tokenizer

    def _device(self) -> torch.device:
        return torch.device(self.device or ("cuda" if torch.cuda.is_available() else "cpu"))

    def _dtype_name(self) -> str:
        if isinstance(self.model, torch.nn.Module):
            return str(self.model.dtype).removeprefix("torch.")
        if self.dtype != "auto":
            return self.dtype
        return "bfloat16" if self._device().type == "cuda" else "float32"

    def _identity(self) -> str:
        if isinstance(self.model, torch.nn.Module):
            template = getattr(self.tokenizer, "chat_template", None)
            return digest_json([weights_digest(self.model.named_parameters()), config_digest(self.config), template])
        if Path(self.model).is_dir():
            return model_directory_digest(Path(self.model))
        return f"{self.model}@{getattr(self.config, '_commit_hash', None)}"


def of_the_model(kind: Any, name: str, *, option: str, **how: Any) -> Any:
    """`kind.from_pretrained` (a configuration, a tokenizer) of a model's name, or an error that names it."""
    try:
        return kind.from_pretrained(name, **how)
    except OSError as error:
        raise FileNotFoundError(
            f"there is no model {name!r}: no directory here with its files, and the hub did not give one "
            f"({str(error).splitlines()[0]}). Check the path or the id; without a network give a local copy with "
            f"{option} DIR."
        ) from error


def installed(module: str) -> bool:
    """Whether a module is there to be imported."""
    return module in sys.modules or importlib.util.find_spec(module) is not None


def check_dtype(name: str) -> None:
    """Refuse a precision that torch does not know, before a model is loaded."""
    dtype = getattr(torch, name, None)
    if name != "auto" and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ValueError(f"unknown dtype {name!r}; choose auto, float32, bfloat16 or float16.")
