"""A small world on disk, and launches of real processes in it: each backend is started once for all its cases."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import make_model
from tiny_recipe import local_words, tiny_run  # noqa: F401

REPO = Path(__file__).parents[2]
WORKER = Path(__file__).with_name("worker.py")
ACCELERATE = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch"]
CONFIG = {"ddp": "cpu", "two_nodes": "cpu", "zero2": "zero2", "zero3": "zero3", "fsdp2": "fsdp2"}
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "DS_ACCELERATOR": "cpu",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "GLOO_SOCKET_IFNAME": "lo",
}
PATIENCE = 900  # seconds; a launch takes half a minute on two idle cores


def rows(count=32):
    """Documents of very different lengths, so that processes have different numbers of label tokens."""
    for seed in range(count):
        rng = random.Random(seed)
        ids = [rng.randrange(30, 300) for _ in range(rng.randint(4, 24))]
        prompt = rng.randint(1, len(ids) - 2)
        yield {"input_ids": ids, "labels": [-100] * prompt + ids[prompt:]}


@pytest.fixture(scope="session")
def world(tmp_path_factory, tiny_tokenizer):
    """Students with untied and tied heads, a teacher, 32 tokenized documents, and the teacher's cache of them."""
    from qsft.teacher.capture.capture import build_cache

    folder = tmp_path_factory.mktemp("world")
    teacher = make_model(seed=5)
    for place in (folder, folder / "teacher"):
        tiny_tokenizer.save_pretrained(place)
    teacher.save_pretrained(folder / "teacher")
    make_model().save_pretrained(folder / "untied")
    make_model(tie_word_embeddings=True).save_pretrained(folder / "tied")
    documents = list(rows())
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in documents))
    build_cache(documents, teacher, folder / "cache", tokenizer=tiny_tokenizer, top_k=16, progress=False)
    return folder


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def commands(backend):
    """What to start for a backend: one launcher, or one per node."""
    if backend == "single":
        return [[sys.executable]]
    # The product's own configuration; only its number of GPUs and their precision are not this machine's.
    config = REPO / "recipes" / "accelerate" / f"{CONFIG[backend]}.yaml"
    launch = [*ACCELERATE, "--config_file", str(config), "--num_processes", "2", "--mixed_precision", "no"]
    launch += ["--main_process_port", free_port()]
    if backend != "two_nodes":
        return [launch]
    node = [*launch, "--num_machines", "2", "--main_process_ip", "127.0.0.1", "--machine_rank"]
    return [[*node, rank] for rank in ("0", "1")]


def without_noise(output):
    """A launch's output without the lines that Triton's bindings print at every exit with an error."""
    noise = ("nanobind: ", " - leaked ", " - ... skipped")
    return "\n".join(line for line in output.splitlines() if not line.startswith(noise))


def run_to_the_end(started, fails=False):
    """Wait for launches that belong together; all must end with code 0, or none if `fails`. None outlives the test."""
    try:
        for process in started:
            output, _ = process.communicate(timeout=PATIENCE)
            assert (process.returncode != 0) == fails, without_noise(output)
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def start(world):
    """start(backend, cases, folder) -> the started launchers, one per node."""

    def run(backend, cases, folder):
        words = [str(WORKER), str(world), str(folder), json.dumps(cases)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        environment = {**os.environ, **ENVIRONMENT}
        return [
            subprocess.Popen([*command, *words], env=environment, start_new_session=True, **pipes)
            for command in commands(backend)
        ]

    return run


@pytest.fixture(scope="session")
def launch(start, tmp_path_factory):
    """launch(backend, cases) -> (directory of the run, results of each process by case)."""

    def run(backend, cases, folder=None, fails=False):
        folder = folder or tmp_path_factory.mktemp(backend)
        run_to_the_end(start(backend, cases, folder), fails)
        return folder, [json.loads(file.read_text()) for file in sorted(folder.glob("rank*.json"))]

    return run
