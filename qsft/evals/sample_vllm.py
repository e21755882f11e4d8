"""Draw responses with vLLM's offline engine, where it is installed: the same requests, the same generations."""

from collections.abc import Iterable, Iterator
from typing import Any

from transformers import PreTrainedTokenizerBase

from qsft.evals.noise import row_key
from qsft.evals.protocol import Sampling
from qsft.evals.request import Generation, Request, Stops, plan

CHUNK = 4096  # requests in the engine at once: enough to keep it busy, few enough to hold


def start_engine(model: str, dtype: str, tensor_parallel_size: int) -> Any:
    """vLLM's LLM over a model path or id."""
    from vllm import LLM

    return LLM(model=model, dtype=dtype, tensor_parallel_size=tensor_parallel_size)


class VllmSampler:
    """Draws responses from a vLLM engine; every sample has its own seed, but a batch may still round differently."""

    def __init__(self, llm: Any, tokenizer: PreTrainedTokenizerBase, sampling: Sampling) -> None:
        self.llm, self.tokenizer, self.sampling = llm, tokenizer, sampling
        self.context: int | None = llm.llm_engine.model_config.max_model_len
        self.stops = Stops(tokenizer, sampling.stop)

    def sample(self, requests: Iterable[Request]) -> Iterator[Generation]:
        """The responses, in the order in which they finish."""
        rows = plan(requests, self.tokenizer, self.sampling.max_new_tokens, self.context)
        for start in range(0, len(rows), CHUNK):
            chunk = {str(start + index): row for index, row in enumerate(rows[start : start + CHUNK])}
            engine = self.llm.llm_engine
            for name, row in chunk.items():
                engine.add_request(name, {"prompt_token_ids": list(row.prompt)}, self._params(row.request, row.limit))
            while engine.has_unfinished_requests():
                for output in engine.step():
                    if output.finished:
                        yield self._generation(chunk[output.request_id].request, output.outputs[0])

    def _params(self, request: Request, limit: int) -> Any:
        from vllm import SamplingParams

        how = self.sampling
        return SamplingParams(
            n=1,
            temperature=how.temperature,
            top_p=how.top_p,
            top_k=how.top_k or -1,
            max_tokens=limit,
            # vLLM takes seeds of 63 bits.
            seed=row_key(how.seed, request.problem, request.sample) & (2**63 - 1),
            stop=list(self.stops.texts),
            stop_token_ids=self.stops.ids,
        )

    def _generation(self, request: Request, completion: Any) -> Generation:
        finish = "length" if completion.finish_reason == "length" else "stop"
        return Generation(request.problem, request.sample, completion.text, len(completion.token_ids), finish)
