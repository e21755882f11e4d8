"""Start a vLLM engine, and make sure that its processes end with this one.

The engine runs in processes of its own. They survive a SIGKILL of this process and would keep its GPU, so a small guard
process ends them. Under a launcher every process starts an engine of its own on its own GPU (data parallelism).
"""

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from qsft.processes import local_rank, world_size

LAUNCHER_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)
# Arguments: pid and creation time of the guarded process, then the pids of the engine's processes.
GUARD = """
import sys, time, psutil

parent = int(sys.argv[1])
created = float(sys.argv[2])
engine = [psutil.Process(int(pid)) for pid in sys.argv[3:] if psutil.pid_exists(int(pid))]


def parent_is_alive():
    try:
        process = psutil.Process(parent)
        return process.create_time() == created and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


while any(process.is_running() for process in engine) and parent_is_alive():
    time.sleep(1)
time.sleep(1)
for process in engine:
    if process.is_running():
        process.kill()
"""


@dataclass(frozen=True)
class EngineOptions:
    """How a vLLM engine is started.

    Args:
        dtype: precision of the weights.
        tensor_parallel_size: GPUs that one model is spread over.
        max_model_len: longest prompt and response together; None is the model's context length.
        engine_args: further arguments of `vllm.LLM`, for example {"gpu_memory_utilization": 0.8}.
    """

    dtype: str = "auto"
    tensor_parallel_size: int = 1
    max_model_len: int | None = None
    engine_args: Mapping[str, Any] = field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of `vllm.LLM`; `engine_args` take precedence."""
        arguments: dict[str, Any] = {"dtype": self.dtype, "tensor_parallel_size": self.tensor_parallel_size}
        if self.max_model_len is not None:
            arguments["max_model_len"] = self.max_model_len
        return {**arguments, **self.engine_args}


def start_engine(model: str, options: EngineOptions) -> Any:
    """A `vllm.LLM` whose processes end with this one."""
    from vllm import LLM

    with _without_launcher():
        llm = LLM(model=model, **options.arguments())
    _guard_engine()
    return llm


def parse_engine_args(words: Iterable[str]) -> dict[str, Any]:
    """KEY=VALUE words as arguments of vLLM's engine; values are read as YAML (`true`, `0.8`)."""
    import yaml

    arguments = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not (equals and key.isidentifier()):
            raise ValueError(f"--engine {word}: write KEY=VALUE, for example gpu_memory_utilization=0.8.")
        arguments[key] = yaml.safe_load(value)
    return arguments


@contextmanager
def _without_launcher() -> Iterator[None]:
    """Hide the launcher's variables, and all GPUs but this process's own, from what is started inside."""
    if world_size() == 1:
        yield
        return
    own = local_rank()  # read before its variable is hidden
    hidden = {name: os.environ.pop(name) for name in LAUNCHER_VARIABLES if name in os.environ}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[own] if visible else str(own)
    try:
        yield
    finally:
        os.environ.update(hidden)
        if visible is None:
            del os.environ["CUDA_VISIBLE_DEVICES"]
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = visible


def _guard_engine() -> None:
    """Start a process that kills the engine's processes once this process has ended in any way."""
    import psutil

    this_process = psutil.Process()
    engine = [str(child.pid) for child in this_process.children(recursive=True)]
    if not engine:
        return
    command = [sys.executable, "-P", "-c", GUARD, str(this_process.pid), str(this_process.create_time()), *engine]
    subprocess.Popen(
        command,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
