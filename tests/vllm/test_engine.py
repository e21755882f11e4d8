"""The real vLLM: prompts, stops and texts of the transformers path, nothing left behind, killed and resumed."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from qsft.inference.model import InferenceModel
from qsft.inference.sampling import Request, Sampling
from qsft.inference.transformers_sampler import TransformersSampler
from qsft.inference.vllm_engine import EngineOptions, parse_engine_args, start_engine
from qsft.inference.vllm_sampler import VllmSampler

pytestmark = pytest.mark.vllm
ENGINE = {"enforce_eager": True}
PROMPTS = [f"{a} + {b} =" for a in range(5) for b in range(4)]


@pytest.fixture(scope="module")
def tokenizer(learned):
    return AutoTokenizer.from_pretrained(learned)


@pytest.fixture(scope="module")
def requests(tokenizer):
    ids = {prompt: tuple(tokenizer(prompt)["input_ids"]) for prompt in PROMPTS}
    return [Request(prompt, sample, ids[prompt]) for prompt in PROMPTS for sample in range(2)]


@pytest.fixture(scope="module")
def llm(learned):
    return start_engine(str(learned), EngineOptions("float32", max_model_len=64, engine_args=ENGINE))


@pytest.fixture
def vllm_sampler(llm, tokenizer):
    return lambda sampling, **how: VllmSampler(llm, tokenizer, sampling, **how)


@pytest.fixture
def hf_sampler(learned, tokenizer):
    model = AutoModelForCausalLM.from_pretrained(learned).eval()
    return lambda sampling: TransformersSampler(model, tokenizer, sampling)


def drawn(sampler, requests):
    return {(g.problem, g.sample): g for g in sampler.sample(requests)}


@pytest.mark.parametrize("stop", [("<|eos|>",), ("so", "<|eos|>"), ("} }", "boxed")])
def test_greedy_responses_are_those_of_transformers(vllm_sampler, hf_sampler, stop, requests):
    greedy = Sampling(num_samples=1, temperature=0, max_new_tokens=12, stop=stop)
    assert drawn(vllm_sampler(greedy), requests) == drawn(hf_sampler(greedy), requests)


def test_a_response_that_reaches_its_limit_finishes_with_length(vllm_sampler, requests):
    assert {one.finish for one in drawn(vllm_sampler(Sampling(max_new_tokens=1, stop=())), requests).values()} >= {
        "length"
    }


def test_seeded_samples_repeat_and_unseeded_ones_differ(vllm_sampler, requests):
    how = Sampling(num_samples=2, temperature=2.0, max_new_tokens=12, stop=())
    first = drawn(vllm_sampler(how), requests)
    assert drawn(vllm_sampler(how), requests) == first
    assert drawn(vllm_sampler(how, seed_requests=False), requests) != first


def test_an_abandoned_sampling_leaves_nothing_in_the_engine(vllm_sampler, llm, requests):
    how = Sampling(num_samples=2, max_new_tokens=40, stop=())
    whole = drawn(vllm_sampler(how), requests)
    abandoned = vllm_sampler(how).sample(requests)
    list(itertools.islice(abandoned, 3))
    abandoned.close()
    assert not llm.llm_engine.has_unfinished_requests()
    assert drawn(vllm_sampler(how), requests) == whole


def test_more_requests_than_fly_at_once(vllm_sampler, monkeypatch, requests):
    how = Sampling(num_samples=2, max_new_tokens=12)
    whole = drawn(vllm_sampler(how), requests)
    monkeypatch.setattr("qsft.inference.vllm_sampler.MAX_IN_FLIGHT", 7)
    assert drawn(vllm_sampler(how), requests) == whole


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_a_response_that_the_engine_gave_up_on_is_not_a_sample(vllm_sampler, llm, monkeypatch, reason, requests):
    step = llm.llm_engine.step

    def failing():
        outputs = step()
        for output in outputs:
            if output.finished:
                output.outputs[0].finish_reason = reason
        return outputs

    monkeypatch.setattr(llm.llm_engine, "step", failing)
    with pytest.raises(RuntimeError, match=f"with '{reason}'"):
        drawn(vllm_sampler(Sampling(max_new_tokens=4)), requests)


# ---- the command ----


@pytest.fixture
def sums(tmp_path):
    path = tmp_path / "sums.jsonl"
    rows = [{"problem": f"{a} + {b} =", "answer": str(a + b)} for a in range(10) for b in range(6)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def command(model, sums, out, *more):
    words = [
        "eval", str(model), "--tasks", str(sums), "--backend", "vllm", "--dtype", "float32", "--prompt", "plain",
        "--num_samples", "8", "--max_new_tokens", "24", "--output_dir", str(out),
        "--engine", "enforce_eager=true", *more,
    ]  # fmt: skip
    return [sys.executable, "-m", "qsft", *words]


def generations(out):
    return sorted((out / "generations").glob("*.jsonl"))[0].read_bytes()


def test_a_killed_evaluation_leaves_no_engine_and_resumes_equal(learned, sums, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run(command(learned, sums, whole), check=True)
    process = subprocess.Popen(command(learned, sums, killed))
    file = killed / "generations" / "sums.jsonl"
    while not (file.exists() and file.stat().st_size > 2000):
        assert process.poll() is None, "the evaluation ended before it could be killed"
        time.sleep(0.02)
    engine = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert psutil.wait_procs(engine, timeout=20)[1] == []
    assert file.read_bytes().count(b"\n") < 480
    subprocess.run(command(learned, sums, killed), check=True)
    assert generations(killed) == generations(whole)


def test_two_processes_have_an_engine_each_and_draw_the_same(learned, sums, tmp_path):
    subprocess.run(command(learned, sums, tmp_path / "one"), check=True)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone", "-m", "qsft"]
    words = command(learned, sums, tmp_path / "two")[3:]
    subprocess.run([*launch, *words], check=True, env={**os.environ, "VLLM_CPU_OMP_THREADS_BIND": "nobind"})
    assert generations(tmp_path / "two") == generations(tmp_path / "one")


def test_the_engine_has_room_for_what_the_run_needs_and_no_more(learned, tokenizer, requests):
    subject = InferenceModel(learned, tokenizer, "vllm", "float32", engine=EngineOptions(engine_args=ENGINE))
    subject.limit_context(tokenizer(["0 + 0 =", "1 + 2 + 3 ="])["input_ids"], max_new_tokens=9)
    sampler = subject.sampler(Sampling(num_samples=1, max_new_tokens=9))
    assert sampler.context_length == len(tokenizer("1 + 2 + 3 =")["input_ids"]) + 9
    assert len(drawn(sampler, requests[:2])) == 2


def test_engine_words_that_are_no_pairs_are_refused():
    with pytest.raises(ValueError, match="--engine eager: write KEY=VALUE"):
        parse_engine_args(["eager"])
