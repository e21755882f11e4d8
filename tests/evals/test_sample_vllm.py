"""The vLLM backend against a stand-in of its engine: vLLM itself needs a GPU, its offline interface does not."""

import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

import pytest

from qsft.evals.model_under_test import ModelUnderTest
from qsft.evals.protocol import Sampling
from qsft.evals.request import Request
from qsft.evals.sample_vllm import VllmSampler, start_engine


class Engine:
    """Answers every request with its seed, two requests per step, the last one first."""

    def __init__(self):
        self.model_config = SimpleNamespace(max_model_len=16)
        self.waiting = []

    def add_request(self, request_id, prompt, params):
        self.waiting.append((request_id, prompt, params))

    def has_unfinished_requests(self):
        return bool(self.waiting)

    def step(self):
        done, self.waiting = self.waiting[-2:], self.waiting[:-2]
        for request_id, prompt, params in reversed(done):
            reason = "length" if params.max_tokens < 4 else "stop"
            completion = SimpleNamespace(text=f"{params.seed}", token_ids=[1, 2], finish_reason=reason)
            yield SimpleNamespace(request_id=request_id, finished=True, outputs=[completion])


@dataclass
class SamplingParams:
    n: int
    temperature: float
    top_p: float
    top_k: int
    max_tokens: int
    seed: int
    stop: list
    stop_token_ids: list


@pytest.fixture
def vllm(monkeypatch):
    module = ModuleType("vllm")
    module.LLM = lambda **settings: SimpleNamespace(settings=settings, llm_engine=Engine())
    module.SamplingParams = SamplingParams
    monkeypatch.setitem(sys.modules, "vllm", module)


@pytest.mark.usefixtures("vllm")
def test_every_request_comes_back_with_a_seed_of_its_own(sum_tokenizer):
    llm = start_engine("path", "bfloat16", 2)
    assert llm.settings == {"model": "path", "dtype": "bfloat16", "tensor_parallel_size": 2}
    sampler = VllmSampler(llm, sum_tokenizer, Sampling(n=3, max_new_tokens=9))
    wanted = [Request(str(d), s, "1 + " * 7 if d else "1 + 1 =") for d in range(2) for s in range(3)]
    drawn = {(g.problem, g.sample): g for g in sampler.sample(wanted)}
    assert set(drawn) == {(r.problem, r.sample) for r in wanted}
    assert len({g.text for g in drawn.values()}) == 6
    assert all(0 <= int(g.text) < 2**63 for g in drawn.values())
    assert (drawn["0", 0].finish, drawn["1", 0].finish) == ("stop", "length")  # the context leaves 2 tokens
    assert {(g.problem, g.sample): g for g in sampler.sample(wanted[::-1])} == drawn


@pytest.mark.usefixtures("vllm")
def test_vllm_takes_one_process_and_says_that_batching_matters(sum_directory):
    with pytest.raises(ValueError, match="--tensor_parallel_size"):
        ModelUnderTest(sum_directory, backend="vllm", processes=2)
    assert not ModelUnderTest(sum_directory, backend="vllm").independent
    assert ModelUnderTest(sum_directory, dtype="float32").independent
