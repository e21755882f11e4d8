"""Files in the working directory are not executed by the processes that train, whatever they are named."""

import pytest
from planted import COMMAND, executed, plant, run_script

NAMES = ("accelerate", "torch", "transformers", "trl", "datasets", "psutil", "yaml", "rich", "qsft", "json")


@pytest.mark.slow
@pytest.mark.distributed
def test_two_processes_that_accelerate_launches(tiny_run, tmp_path):
    directory = plant(tmp_path, *NAMES)
    words = ["train", "numina_qwen_math_1p5b", "--accelerate_config", "cpu", *tiny_run("numina").words]
    done = run_script(tmp_path, directory, COMMAND, *words, "--max_steps", "1")
    assert executed(tmp_path) == []
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "run" / "model.safetensors").is_file()


@pytest.mark.slow
def test_the_trainings_and_evaluations_of_a_sweep(local_words, tmp_path):
    directory = plant(tmp_path, *NAMES)
    (directory / "sums.jsonl").write_text('{"problem": "w1 + w2 =", "answer": "3"}\n')
    words = ["sweep", "numina_qwen_math_1p5b", "--grid", "target=sft", "--output_dir", tmp_path / "sweep"]
    words += ["--eval", "--tasks sums.jsonl --num_samples 1 --max_new_tokens 4", *local_words(max_steps=1)]
    done = run_script(tmp_path, directory, COMMAND, *words)
    assert executed(tmp_path) == []
    assert done.returncode == 0, done.stderr[-3000:]
    assert list(tmp_path.glob("sweep/sft/_eval/summary.json"))
