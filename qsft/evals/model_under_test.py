"""The model under evaluation: what identifies it, which backend draws from it, loaded only when a sample is missing."""

import importlib.util
import os
import sys
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from qsft.evals.protocol import Sampling
from qsft.evals.request import context_of
from qsft.evals.sample import Sampler

BACKENDS = ("auto", "transformers", "vllm")
DESCRIBE = ("config", "generation_config", "adapter_config", "tokenizer", "chat_template", "special_tokens", "vocab")
BLOCK, BLOCKS = 1 << 16, 64  # what is read of each file to tell one training's weights from another's


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
    device: str | torch.device | None = None
    processes: int = 1
    _engine: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise ValueError(f"unknown backend {self.backend!r}; choose one of {', '.join(BACKENDS)}.")
        if isinstance(self.model, torch.nn.Module) and self.tokenizer is None:
            raise ValueError("a model in memory needs its tokenizer: evaluate(model, tokenizer=tokenizer, …).")
        if self.backend == "auto":
            self.backend = "vllm" if self._vllm_fits() else "transformers"
        if self.backend == "vllm" and self.processes > 1:
            raise ValueError("vLLM spreads one process over GPUs. Start one process with --tensor_parallel_size N.")
        if self.backend == "vllm" and not installed("vllm"):
            raise ValueError("the backend vllm is not installed. pip install 'qsft[vllm]', or --backend transformers.")
        check_dtype(self.dtype)
        _ = self.config  # a name that is no model's is refused now, not after the tasks were read

    def _vllm_fits(self) -> bool:
        path = not isinstance(self.model, torch.nn.Module)
        adapter = path and (Path(str(self.model)) / "adapter_config.json").is_file()
        return path and not adapter and installed("vllm") and torch.cuda.is_available() and self.processes == 1

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
        return {"model": self._identity(), "backend": self.backend, "dtype": self._dtype_name()}

    def sampler(self, sampling: Sampling) -> AnySampler:
        """A sampler of the model, which is loaded on the first call."""
        if self.backend == "vllm":
            from qsft.evals.sample_vllm import VllmSampler, start_engine

            self._engine = self._engine or start_engine(str(self.model), self._dtype_name(), self.tensor_parallel_size)
            return VllmSampler(self._engine, self._tokenizer(), sampling)
        if self._engine is None:
            self._engine = self.model if isinstance(self.model, torch.nn.Module) else self._load()
        return Sampler(self._engine, self._tokenizer(), sampling, batch_size=self.batch_size)

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
            return parameters_digest(self.model, str(template))
        if Path(self.model).is_dir():
            return directory_digest(Path(self.model))
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


def directory_digest(directory: Path) -> str:
    """A digest of a saved model: every file's name and size and blocks spread over it, so retraining changes it."""
    digest = blake2b(digest_size=16)
    for path in sorted(directory.iterdir()):
        if path.is_file() and (path.suffix == ".safetensors" or path.name.startswith(DESCRIBE)):
            size = path.stat().st_size
            digest.update(f"{path.name}\0{size}\0".encode())
            with path.open("rb") as file:
                for offset in range(0, size, max(BLOCK, size // BLOCKS)):
                    file.seek(offset)
                    digest.update(file.read(BLOCK))
    return digest.hexdigest()


def parameters_digest(model: torch.nn.Module, salt: str) -> str:
    """A digest of a model in memory: up to 4096 numbers of every parameter."""
    digest = blake2b(salt.encode(), digest_size=16)
    for name, parameter in model.named_parameters():
        flat = parameter.detach().flatten()
        digest.update(name.encode() + flat[:: max(1, len(flat) // 4096)].float().cpu().numpy().tobytes())
    return digest.hexdigest()


class Processes:
    """This process among those that share the work: started by accelerate or torchrun, or alone."""

    def __init__(self) -> None:
        self._state: Any = None
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            from datetime import timedelta

            from accelerate import PartialState

            # One process may sample for hours longer than another; the others wait for it.
            self._state = PartialState(cpu=not torch.cuda.is_available(), timeout=timedelta(days=7))
        self.rank: int = self._state.process_index if self._state else 0
        self.count: int = self._state.num_processes if self._state else 1
        self.device: torch.device | None = self._state.device if self._state else None

    def wait(self) -> None:
        """Wait until every process has come here."""
        if self._state is not None:
            self._state.wait_for_everyone()

    def end(self) -> None:
        """Leave the group, without which gloo aborts at exit."""
        if self._state is not None:
            self.wait()
            self._state.destroy_process_group()
