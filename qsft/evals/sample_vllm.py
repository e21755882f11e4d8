"""Draw responses with vLLM's offline engine, where it is installed: the same requests, the same generations.

The engine works in processes of its own. They outlive a kill of this one and would hold its GPU, so a guard ends them.
Under a launcher every process has an engine of its own on its own GPU: data parallelism, for models whose heads no
tensor parallelism divides.
"""

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any
from uuid import uuid4

from transformers import PreTrainedTokenizerBase

from qsft.evals.protocol import Generation, Request, Sampling, Stops, plan, row_key
from qsft.processes import world_size

IN_FLIGHT = 4096  # requests in the engine at once: enough to keep it busy, few enough to hold
LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
GUARD = """
import sys, time, psutil
parent, started = int(sys.argv[1]), float(sys.argv[2])
engine = [psutil.Process(int(pid)) for pid in sys.argv[3:] if psutil.pid_exists(int(pid))]
alive = lambda: psutil.pid_exists(parent) and psutil.Process(parent).create_time() == started
while any(one.is_running() for one in engine) and alive() and psutil.Process(parent).status() != psutil.STATUS_ZOMBIE:
    time.sleep(1)
time.sleep(1)
for one in engine:
    if one.is_running():
        one.kill()
"""


def start_engine(model: str, dtype: str, tensor_parallel_size: int, options: Mapping[str, Any]) -> Any:
    from vllm import LLM

    with _as_if_alone():
        llm = LLM(model=model, dtype=dtype, tensor_parallel_size=tensor_parallel_size, **options)
    _guard_engine()
    return llm


def engine_options(words: Iterable[str]) -> dict[str, Any]:
    """KEY=VALUE words as arguments of vLLM's engine; values are read as YAML, so `true` and `0.8` are what they say."""
    import yaml

    options = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not (equals and key.isidentifier()):
            raise ValueError(f"--engine {word}: write KEY=VALUE, for example gpu_memory_utilization=0.8.")
        options[key] = yaml.safe_load(value)
    return options


@contextmanager
def _as_if_alone() -> Iterator[None]:
    """What starts meanwhile sees no launcher, and of several GPUs only this process's."""
    if world_size() == 1:
        yield
        return
    hidden = {name: os.environ.pop(name) for name in LAUNCHER if name in os.environ}
    devices = os.environ.get("CUDA_VISIBLE_DEVICES")
    mine = devices.split(",")[int(hidden["LOCAL_RANK"])] if devices else hidden["LOCAL_RANK"]
    os.environ["CUDA_VISIBLE_DEVICES"] = mine
    try:
        yield
    finally:
        os.environ.update(hidden)
        del os.environ["CUDA_VISIBLE_DEVICES"]
        if devices is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = devices


def _guard_engine() -> None:
    """Start a process that kills the engine's processes once this one is gone, however it ended."""
    import psutil

    me = psutil.Process()
    engine = [str(child.pid) for child in me.children(recursive=True)]
    if engine:
        command = [sys.executable, "-c", GUARD, str(me.pid), str(me.create_time()), *engine]
        quiet = subprocess.DEVNULL
        subprocess.Popen(command, start_new_session=True, stdin=quiet, stdout=quiet, stderr=quiet)


class VllmSampler:
    """Draws responses from a vLLM engine; every sample has its own seed, but a batch may still round differently."""

    def __init__(
        self, llm: Any, tokenizer: PreTrainedTokenizerBase, sampling: Sampling, *, seed_requests: bool = True
    ) -> None:
        self.llm, self.tokenizer, self.sampling, self.seed_requests = llm, tokenizer, sampling, seed_requests
        self.context: int | None = llm.llm_engine.model_config.max_model_len
        self.stops = Stops(tokenizer, sampling.stop)

    def sample(self, requests: Iterable[Request]) -> Iterator[Generation]:
        """The responses, in the order in which they finish; whoever stops listening leaves nothing in the engine."""
        engine = self.llm.llm_engine
        call, flying = uuid4().hex, dict[str, Request]()
        waiting = enumerate(plan(requests, self.tokenizer, self.sampling.max_new_tokens, self.context))
        try:
            while True:
                for number, request in islice(waiting, IN_FLIGHT - len(flying)):
                    flying[name := f"{call}-{number}"] = request
                    prompt = {"type": "token", "prompt_token_ids": list(request.ids)}
                    engine.add_request(name, prompt, self._params(request))
                if not flying:
                    return
                for output in engine.step():
                    if output.finished:
                        yield self._generation(flying.pop(output.request_id), output.outputs[0])
        finally:
            if flying:
                engine.abort_request(list(flying))

    def _params(self, request: Request) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        how = self.sampling
        seed = row_key(how.seed, *request.key) & (2**63 - 1)  # vLLM takes 63 bits
        return SamplingParams(
            temperature=how.temperature,
            top_p=how.top_p,
            top_k=how.top_k or -1,
            max_tokens=request.limit,
            seed=seed if self.seed_requests else None,
            stop=list(self.stops.texts),
            detokenize=bool(self.stops.texts),
            stop_token_ids=self.stops.ids,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _generation(self, request: Request, completion: Any) -> Generation:
        """The response, its text decoded as the transformers path does (vLLM's own begins in the prompt's context)."""
        reason = completion.finish_reason
        if reason in ("abort", "error"):  # no sample of the model
            what = f"vLLM ended problem {request.problem}, sample {request.sample} with {reason!r}"
            raise RuntimeError(f"{what}; what was drawn is kept. Rerun the command; the engine's log above says more.")
        text, tokens, _ = self.stops.cut(completion.token_ids)
        return Generation(request.problem, request.sample, text, tokens, reason, completion.token_ids)
