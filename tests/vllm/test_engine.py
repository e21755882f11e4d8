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

from qsft.evals.model_under_test import ModelUnderTest
from qsft.evals.protocol import Request, Sampling
from qsft.evals.sample import Sampler
from qsft.evals.sample_vllm import engine_options

pytestmark = pytest.mark.vllm
ENGINE = {"enforce_eager": True}
REQUESTS = [Request(f"{a}+{b}", s, f"{a} + {b} =") for a in range(5) for b in range(4) for s in range(2)]


@pytest.fixture(scope="module")
def tokenizer(learned):
    return AutoTokenizer.from_pretrained(learned)


@pytest.fixture(scope="module")
def llm(learned):
    from qsft.evals.sample_vllm import start_engine

    return start_engine(str(learned), "float32", 1, {"max_model_len": 64, **ENGINE})


@pytest.fixture
def vllm_sampler(llm, tokenizer):
    from qsft.evals.sample_vllm import VllmSampler

    return lambda sampling, **how: VllmSampler(llm, tokenizer, sampling, **how)


@pytest.fixture
def hf_sampler(learned, tokenizer):
    model = AutoModelForCausalLM.from_pretrained(learned).eval()
    return lambda sampling: Sampler(model, tokenizer, sampling)


def drawn(sampler, requests=REQUESTS):
    return {(g.problem, g.sample): g for g in sampler.sample(requests)}


@pytest.mark.parametrize("stop", [("<|eos|>",), ("so", "<|eos|>"), ("} }", "boxed")])
def test_greedy_responses_are_those_of_transformers(vllm_sampler, hf_sampler, stop):
    greedy = Sampling(n=1, temperature=0, max_new_tokens=12, stop=stop)
    assert drawn(vllm_sampler(greedy)) == drawn(hf_sampler(greedy))


def test_a_short_limit_is_said_by_the_finish(vllm_sampler):
    assert {one.finish for one in drawn(vllm_sampler(Sampling(max_new_tokens=1, stop=()))).values()} >= {"length"}


def test_seeded_samples_repeat_and_unseeded_ones_differ(vllm_sampler):
    how = Sampling(n=2, temperature=2.0, max_new_tokens=12, stop=())
    first = drawn(vllm_sampler(how))
    assert drawn(vllm_sampler(how)) == first
    assert drawn(vllm_sampler(how, seed_requests=False)) != first


def test_an_abandoned_sampling_leaves_nothing_in_the_engine(vllm_sampler, llm):
    how = Sampling(n=2, max_new_tokens=40, stop=())
    whole = drawn(vllm_sampler(how))
    abandoned = vllm_sampler(how).sample(REQUESTS)
    list(itertools.islice(abandoned, 3))
    abandoned.close()
    assert not llm.llm_engine.has_unfinished_requests()
    assert drawn(vllm_sampler(how)) == whole


def test_more_requests_than_fly_at_once(vllm_sampler, monkeypatch):
    how = Sampling(n=2, max_new_tokens=12)
    whole = drawn(vllm_sampler(how))
    monkeypatch.setattr("qsft.evals.sample_vllm.IN_FLIGHT", 7)
    assert drawn(vllm_sampler(how)) == whole


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_a_response_that_the_engine_gave_up_on_is_no_sample(vllm_sampler, llm, monkeypatch, reason):
    step = llm.llm_engine.step

    def failing():
        outputs = step()
        for output in outputs:
            if output.finished:
                output.outputs[0].finish_reason = reason
        return outputs

    monkeypatch.setattr(llm.llm_engine, "step", failing)
    with pytest.raises(RuntimeError, match=f"with '{reason}'"):
        drawn(vllm_sampler(Sampling(max_new_tokens=4)))


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
        "--n", "8", "--max_new_tokens", "24", "--output_dir", str(out), "--engine", "enforce_eager=true", *more,
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
    words[words.index("--n")] = "--samples"
    subprocess.run([*launch, *words], check=True, env={**os.environ, "VLLM_CPU_OMP_THREADS_BIND": "nobind"})
    assert generations(tmp_path / "two") == generations(tmp_path / "one")


def test_the_engine_has_room_for_what_the_run_needs_and_no_more(learned, tokenizer):
    subject = ModelUnderTest(learned, tokenizer, "vllm", "float32", engine=ENGINE)
    subject.limit_positions(["0 + 0 =", "1 + 2 + 3 ="], max_new_tokens=9)
    sampler = subject.sampler(Sampling(n=1, max_new_tokens=9))
    assert sampler.context == len(tokenizer("1 + 2 + 3 =")["input_ids"]) + 9
    assert len(drawn(sampler, REQUESTS[:2])) == 2


def test_engine_words_that_are_no_pairs_are_refused():
    with pytest.raises(ValueError, match="--engine eager: write KEY=VALUE"):
        engine_options(["eager"])
