"""Sweeps killed at random moments: rerun, they end with the weights and results of an unbroken sweep."""

import json
import os
import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from kills import kill_when, lines_of, rounds
from safetensors.torch import load_file

from qsft.cli import main
from qsft.experiments import sweep as sweep_module

pytestmark = pytest.mark.slow

QUESTIONS = 24
DIGESTS = ("settings", "check")


@pytest.fixture
def words(tmp_path, local_words, monkeypatch):
    """A sweep of one training of 4 steps with a checkpoint each, and its evaluation."""
    monkeypatch.chdir(tmp_path)
    problems = [{"problem": f"w{i} + w2 = ?", "answer": "3"} for i in range(QUESTIONS)]
    Path("sums.jsonl").write_text("".join(json.dumps(problem) + "\n" for problem in problems))
    evaluation = "--tasks sums.jsonl --num_samples 2 --max_new_tokens 4 --batch_size 2"
    training = local_words(max_steps=4, save_steps=1, save_strategy="steps")
    return ["sweep", "numina_qwen_math_1p5b", "--grid", "target=target_sft", "--eval", evaluation, *training]


class KilledFamily(subprocess.Popen):
    """A process whose `kill` kills its children too: training and evaluation run in process groups of their own."""

    def kill(self):
        with suppress(psutil.NoSuchProcess):
            for member in psutil.Process(self.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    member.kill()
        super().kill()


def results(sweep):
    """What must not differ: the trained weights, the responses and their grades, and the comparison."""
    weights = load_file(sweep / "target_sft" / "model.safetensors")
    files = {}
    for name in ("generations/sums.jsonl", "grades/sums.jsonl"):
        lines = (sweep / "target_sft" / "_eval" / name).read_text("utf-8").splitlines()
        # Digests of settings differ: they name the model's directory.
        files[name] = [{k: v for k, v in json.loads(line).items() if k not in DIGESTS} for line in lines]
    return {name: weight.tolist() for name, weight in weights.items()}, files


def test_a_sweep_killed_at_random_ends_as_if_it_had_not_been(words, tmp_path, monkeypatch, tell):
    in_this_process = monkeypatch.context
    with in_this_process() as patch:
        patch.setattr(sweep_module, "run_child", lambda command: (main(command[3:]), False))
        assert main([*words, "--output_dir", "whole"]) == 0
    expected = results(tmp_path / "whole")
    rng = random.Random(0)
    kills = []
    for number in range(rounds(short=1, long=6)):
        out = tmp_path / f"killed{number}"
        responses = out / "target_sft" / "_eval" / "generations" / "sums.jsonl"
        most = rng.randrange(1, 2 * QUESTIONS)
        step = rng.randrange(1, 4)
        moments = {
            f"in step {step}": lambda out=out, step=step: (out / "target_sft" / f"checkpoint-{step}").exists(),
            f"after {most} responses": lambda file=responses, most=most: lines_of(file) >= most,
        }
        for moment, ready in moments.items():
            command = [sys.executable, "-m", "qsft", *words, "--output_dir", out]
            process = KilledFamily(list(map(str, command)), env=os.environ, stdout=subprocess.DEVNULL)
            if kill_when(ready, process) < 0:
                kills.append(moment)
        with in_this_process() as patch:
            patch.setattr(sweep_module, "run_child", lambda command: (main(command[3:]), False))
            assert main([*words, "--output_dir", str(out)]) == 0
        assert results(out) == expected
    tell(f"sweeps: {len(kills)} kills ({', '.join(kills)}); every rerun ended with the results of an unbroken sweep")
    assert kills
