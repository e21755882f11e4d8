"""Sample responses with a vLLM engine: the same requests and the same kind of generations as with transformers."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any
from uuid import uuid4

from transformers import PreTrainedTokenizerBase

from qsft.inference.sampling import Generation, Request, Sampling, plan_requests, sample_key
from qsft.inference.stop_conditions import StopConditions

MAX_IN_FLIGHT = 4096  # requests in the engine at once: enough to keep it busy


class VllmSampler:
    """Samples responses from a `vllm.LLM`.

    Args:
        seed_requests: give every sample its own seed. Without seeds vLLM is faster, but samples are not repeatable.
            Even with seeds, a batch may round differently in half precision.
    """

    def __init__(
        self, llm: Any, tokenizer: PreTrainedTokenizerBase, sampling: Sampling, *, seed_requests: bool = True
    ) -> None:
        self.llm = llm
        self.tokenizer = tokenizer
        self.sampling = sampling
        self.seed_requests = seed_requests
        self.context_length: int | None = llm.llm_engine.model_config.max_model_len
        self.stops = StopConditions(tokenizer, sampling.stop)

    def sample(self, requests: Iterable[Request]) -> Iterator[Generation]:
        """Yield the responses in the order in which they finish; closing the iterator aborts the remaining requests."""
        engine = self.llm.llm_engine
        prefix = uuid4().hex
        in_flight: dict[str, Request] = {}
        waiting = enumerate(plan_requests(requests, self.sampling.max_new_tokens, self.context_length))
        try:
            while True:
                for number, request in islice(waiting, MAX_IN_FLIGHT - len(in_flight)):
                    request_id = f"{prefix}-{number}"
                    in_flight[request_id] = request
                    prompt = {"type": "token", "prompt_token_ids": list(request.ids)}
                    engine.add_request(request_id, prompt, self._parameters(request))
                if not in_flight:
                    return
                for output in engine.step():
                    if output.finished:
                        yield self._generation(in_flight.pop(output.request_id), output.outputs[0])
        finally:
            if in_flight:
                engine.abort_request(list(in_flight))

    def _parameters(self, request: Request) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        seed = None
        if self.seed_requests:
            seed = sample_key(self.sampling.seed, *request.key) & (2**63 - 1)  # vLLM takes 63 bits
        return SamplingParams(
            temperature=self.sampling.temperature,
            top_p=self.sampling.top_p,
            top_k=self.sampling.top_k or -1,
            max_tokens=request.max_new_tokens,
            seed=seed,
            stop=list(self.stops.texts),
            detokenize=bool(self.stops.texts),
            stop_token_ids=self.stops.ids,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _generation(self, request: Request, completion: Any) -> Generation:
        """The response, decoded as the transformers sampler does; vLLM's own text depends on the prompt's end."""
        reason = completion.finish_reason
        if reason in ("abort", "error"):
            raise RuntimeError(
                f"vLLM ended problem {request.problem}, sample {request.sample} with {reason!r}, which is not a sample "
                "of the model. The samples drawn so far are kept. See the engine's log above, and rerun the command."
            )
        text, tokens, _ = self.stops.cut(completion.token_ids)
        return Generation(request.problem, request.sample, text, tokens, reason, completion.token_ids)
