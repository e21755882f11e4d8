"""Loading models, tokenizers and configurations by path or Hub id, with errors that say what to do.

Remote code runs only where the caller passes `trust_remote_code=True`.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import HFValidationError
from peft import PeftModel
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from transformers.integrations import deepspeed as hf_deepspeed
from transformers.utils import cached_file, find_adapter_config_file
from transformers.utils.hub import extract_commit_hash

from qsft.files import read_json
from qsft.losses.head import base_causal_lm
from qsft.processes import local_rank

NO_MODEL_CONFIG = "Unrecognized model in"  # how the ValueError of transformers begins for a directory without a model
DOWNLOAD_ARGUMENTS = ("token", "cache_dir", "local_files_only")  # of from_pretrained: how files come from the Hub


def load_model(
    name: str | Path,
    *,
    dtype: torch.dtype | None = None,
    revision: str | None = None,
    device: str | torch.device | None = None,
    **model_kwargs: Any,
) -> nn.Module:
    """Return the causal LM `name`, in evaluation mode and complete in every process.

    The directory or Hub id of a LoRA adapter gives its base model with the adapter applied.

    Args:
        dtype: of the weights; by default that of the checkpoint.
        device: where the model goes; by default it stays where `from_pretrained` puts it. Ignored with a `device_map`.
        model_kwargs: further arguments of `from_pretrained`.

    Raises:
        FileNotFoundError: if there is no such directory and the Hub gives no such model.
    """
    download = {argument: model_kwargs[argument] for argument in DOWNLOAD_ARGUMENTS if argument in model_kwargs}
    base = adapter_base(name, revision, **download)
    if base is not None:
        base_name, base_revision = base
        model: Any = _load_causal_lm(base_name, dtype, base_revision, model_kwargs)
        with unsharded_loading(), explain_missing_model(name):
            model = PeftModel.from_pretrained(model, str(name), revision=revision, **download)
    else:
        model = _load_causal_lm(name, dtype, revision, model_kwargs)
    if device is not None and not has_device_map(model):
        model.to(device)
    return model.eval()


def _load_causal_lm(
    name: str | Path, dtype: torch.dtype | None, revision: str | None, model_kwargs: dict[str, Any]
) -> nn.Module:
    with unsharded_loading(), explain_missing_model(name):
        return AutoModelForCausalLM.from_pretrained(
            str(name), revision=revision, dtype="auto" if dtype is None else dtype, **model_kwargs
        )


def load_tokenizer(name: str | Path, **kwargs: Any) -> PreTrainedTokenizerBase:
    """Return the tokenizer of the model `name`; FileNotFoundError names a model that does not exist."""
    with explain_missing_model(name):
        return AutoTokenizer.from_pretrained(str(name), **kwargs)


def load_config(name: str | Path, **kwargs: Any) -> Any:
    """Return the configuration of the model `name`; FileNotFoundError names a model that does not exist."""
    with explain_missing_model(name):
        return AutoConfig.from_pretrained(str(name), **kwargs)


def config_file(name: str | Path, filename: str = "config.json", **kwargs: Any) -> tuple[Path, str | None]:
    """Return the path of a model's configuration file, and its commit where it comes from the Hub.

    A configuration that transformers loads does not know its commit.
    """
    with explain_missing_model(name):
        path = Path(str(cached_file(str(name), filename, **kwargs)))
    return path, extract_commit_hash(path.as_posix(), None)


@contextmanager
def explain_missing_model(name: str | Path) -> Iterator[None]:
    """Turn the errors of transformers for a model that cannot be found into one that says what to do."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        is_missing = isinstance(error, OSError | HFValidationError) or reason.startswith(NO_MODEL_CONFIG)
        if not is_missing:
            raise
        if Path(name).is_dir():
            raise FileNotFoundError(
                f"the directory {name} cannot be loaded as a model: {reason} Pass the directory that save_pretrained "
                "wrote."
            ) from error
        if looks_like_path(name):
            raise FileNotFoundError(_no_directory_message(name)) from error
        raise FileNotFoundError(
            f"there is no model {name!r}: no directory of that name, and the Hub did not give one ({reason}). "
            "Check the path or id; without a network pass the path of a local copy."
        ) from error


def check_path_exists(name: str | Path) -> None:
    """Raise FileNotFoundError for a model that is named by a path which does not exist."""
    if looks_like_path(name) and not Path(name).exists():
        raise FileNotFoundError(_no_directory_message(name))


def _no_directory_message(name: str | Path) -> str:
    remedy = "Check the path"
    if str(name).startswith("~"):
        remedy += ", and write the home directory in full: only a shell expands ~"
    return f"there is no model directory {name}. {remedy}."


def looks_like_path(name: str | Path) -> bool:
    """Whether a name that does not exist was meant as a path rather than as `org/model`.

    >>> looks_like_path("./runs/teacher"), looks_like_path("Qwen/Qwen3-0.6B")
    (True, False)
    """
    text = str(name)
    return isinstance(name, Path) or text.startswith((".", "~", os.sep)) or text.count("/") > 1


def adapter_base(name: str | Path, revision: str | None = None, **download: Any) -> tuple[str, str | None] | None:
    """Return the base model of a PEFT adapter and its revision; None when `name` is a model by itself.

    Args:
        download: DOWNLOAD_ARGUMENTS of from_pretrained.

    Raises:
        ValueError: if the adapter does not name its base model.
    """
    if Path(name, "config.json").is_file():
        return None
    with explain_missing_model(name):
        found = find_adapter_config_file(str(name), revision=revision, **download)
    if found is None:
        return None
    config = read_json(Path(found), "Save the adapter again, or pass its base model.")
    base = config.get("base_model_name_or_path")
    if not base:
        raise ValueError(
            f"the adapter {name} does not name its base model. Add base_model_name_or_path to {found}, or merge the "
            "adapter into its base and pass that model."
        )
    return str(base), config.get("revision")


@contextmanager
def unsharded_loading() -> Iterator[None]:
    """Inside, `from_pretrained` loads complete models in every process, whatever is configured for the student.

    ZeRO-3 would give each process a part of the weights, and FSDP's RAM-efficient loading would leave all but the first
    process of a machine without them until the model is wrapped. Models loaded here are never wrapped.
    """
    variable = "FSDP_CPU_RAM_EFFICIENT_LOADING"
    reference = hf_deepspeed._hf_deepspeed_config_weak_ref
    deepspeed_config = reference() if reference is not None else None
    ram_efficient = os.environ.pop(variable, None)
    hf_deepspeed.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        if deepspeed_config is not None:
            hf_deepspeed.set_hf_deepspeed_config(deepspeed_config)
        if ram_efficient is not None:
            os.environ[variable] = ram_efficient


def context_length(config: Any) -> int | None:
    """The largest number of positions of a model, where its configuration gives one."""
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def default_device() -> torch.device:
    """This process's accelerator, or the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", local_rank())
    return torch.device("cpu")


def input_device(model: nn.Module) -> torch.device:
    """The device on which a model takes its token ids, also when it is spread over several devices."""
    causal_lm: Any = base_causal_lm(model)
    return causal_lm.get_input_embeddings().weight.device


def has_device_map(model: nn.Module) -> bool:
    """Whether accelerate placed the model on its devices, so that it must not be moved."""
    return bool(getattr(model, "hf_device_map", None))


def parse_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    """The floating-point torch dtype of that name; None for None and "auto".

    >>> parse_dtype("bfloat16")
    torch.bfloat16
    """
    if dtype is None or dtype == "auto":
        return None
    found = getattr(torch, dtype.removeprefix("torch."), None) if isinstance(dtype, str) else dtype
    if not (isinstance(found, torch.dtype) and found.is_floating_point):
        raise ValueError(f"unknown dtype {dtype!r}; choose auto, float32, bfloat16 or float16.")
    return found


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a torch dtype without its module.

    >>> dtype_name(torch.bfloat16)
    'bfloat16'
    """
    return str(dtype).removeprefix("torch.")
