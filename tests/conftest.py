"""Fixtures that all tests share: the tiny tokenizer and models of tiny.py, the profiler's peak; no downloads."""

import fcntl
import gc
import importlib.util
import json
import os
import sys
from contextlib import contextmanager

# Before torch is imported: several test processes share two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRITON_INTERPRET", "1")  # triton decides when it is imported: kernels run on a CPU

import pytest
import tiny
from jaxtyping import install_import_hook

# Shapes are types: checked at run time here, free for the user. Must stand before the first import of qsft.
# (losses.head is left out: accelerate rebuilds a ModelOutput from a dict in its first field.)
SHAPE_CHECKED = [
    "qsft.targets",
    *(f"qsft.losses.{name}" for name in ("fused", "kernel_path", "label_tokens", "projection", "reference", "sums")),
]
for name in SHAPE_CHECKED:
    assert importlib.util.find_spec(name) is not None, f"there is no module {name} to check"
install_import_hook(SHAPE_CHECKED, "typecheck.check")


frozen_modules = 0


def pytest_runtest_setup():
    """Every run of Trainer collects garbage: the million objects that imports made need not be searched each time."""
    global frozen_modules
    if len(sys.modules) > frozen_modules + 100:
        frozen_modules = len(sys.modules)
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def user_caches(tmp_path_factory):
    """Nothing is written to the home directory, by tests or by the processes they start."""
    os.environ["QSFT_CACHE"] = str(tmp_path_factory.mktemp("caches"))


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
    """`made_once("clock", fill)`: a directory that `fill(directory)` filled once for all workers of the session.

    Read it only: the tests of other workers read it too.
    """
    from filelock import FileLock

    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root

    def make(name, fill):
        directory = root / "made_once" / name
        done = root / "made_once" / f"{name}.done"
        directory.parent.mkdir(exist_ok=True)
        with FileLock(f"{directory}.lock"):
            if not done.exists():
                directory.mkdir()
                fill(directory)
                done.touch()
        return directory

    return make


@pytest.fixture(scope="session")
def tiny_tokenizer():
    """A word-level PreTrainedTokenizerFast (320 words) whose chat template marks the assistant's tokens."""
    return tiny.make_tokenizer()


@pytest.fixture
def tiny_model():
    """Factory: `tiny_model(seed=1, tie_word_embeddings=True)` is a random Qwen2, the same for the same arguments."""
    return tiny.make_model


@pytest.fixture(scope="session")
def learned(made_once):
    """A small Llama that learned the sums of sum_tasks.py, saved with a tokenizer without a chat template."""
    import sum_tasks

    def fill(directory):
        tokenizer = tiny.make_tokenizer(chat_template=None)
        model = tiny.make_model(architecture="llama", **sum_tasks.SHAPE)
        tiny.train(model, tokenizer, sum_tasks.corpus())
        assert sum_tasks.share_known(model, tokenizer) == 1.0, "the tests need a model that learned its sums"
        tiny.save(directory, model, tokenizer)

    return made_once("learned", fill)


@pytest.fixture(scope="session")
def sum_tokenizer(learned):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(learned)


@pytest.fixture(scope="session")
def sum_model(learned):
    """The small Llama that learned sums, in memory."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(learned).eval()


@pytest.fixture(scope="session")
def judges():
    """Grading processes, started once: each imports sympy for seconds."""
    from qsft.evals.grading.pool import Judges

    with Judges() as shared:
        yield shared


@pytest.fixture(scope="session")
def tiny_files(tmp_path_factory, tiny_tokenizer):
    """Student, teacher (with a head of another padded size) and 70 rows of every data set."""
    folder = tmp_path_factory.mktemp("tiny")
    for name, seed, rows in (("student", 0, 320), ("teacher", 1, 384)):
        tiny.save(folder / name, tiny.make_model(seed, "llama", vocab_size=rows, hidden_size=32), tiny_tokenizer)
    rows = []
    for i in range(70):
        question = f"w{i} + w{i + 1} = ?"
        answer = " ".join(f"w{j}" for j in range(i % 9 + 1))
        rows.append(
            {
                "extra_info": {"question": question, "answer": answer},
                "target": [{"role": "assistant", "content": answer}],
                "distilled_answer_string": answer,
                "reasoning": "w5",
            }
        )
    for name in ("numina", "openr1", "m23k"):
        for i, row in enumerate(rows):
            question = f"w{i} + w{i + 1} = ?"
            row["prompt"] = [{"role": "user", "content": question}] if name == "openr1" else question
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    documents = [{"input_ids": [4, 5, 6, 7, 2], "labels": [-100, -100, 6, 7, 2]}] * 70
    (folder / "demo.jsonl").write_text("".join(json.dumps(row) + "\n" for row in documents))
    return folder


@pytest.fixture
def held_elsewhere():
    """`held_elsewhere(directory)`: a context in which the directory is locked as if by another process."""

    @contextmanager
    def hold(directory):
        handle = os.open(directory, os.O_RDONLY)  # a lock belongs to one opened directory, also in one process
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
        os.close(handle)

    return hold


@pytest.fixture
def profiled_peak():
    """`profiled_peak(run)`: the most bytes the CPU allocator had handed out while `run` ran."""
    from torch.profiler import ProfilerActivity, profile

    def peak_of(run):
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
            run()
        events = [event for event in prof.profiler.kineto_results.events() if event.name() == "[memory]"]
        live = 0
        peak = 0
        for event in sorted(events, key=lambda event: event.start_ns()):
            live += event.nbytes()
            peak = max(peak, live)
        return peak

    return peak_of


@pytest.fixture
def product_scratch(profiled_peak):
    """`product_scratch(a, b)`: the bytes that torch.mm allocates beside its output.

    On CPUs without bf16 instructions oneDNN sums a product of bf16 in a float32 buffer of the output's shape.
    """
    import torch

    def scratch(a, b):
        out = a.new_empty(a.shape[0], b.shape[1])
        return profiled_peak(lambda: torch.mm(a, b, out=out))

    return scratch


@pytest.fixture
def tell(record_property):
    """`tell("30 kills, …")`: a line below the results, also where the test ran in another process."""
    return lambda line: record_property("printed line", line)


def pytest_terminal_summary(terminalreporter):
    lines = [
        line
        for report in terminalreporter.getreports("passed")
        for name, line in report.user_properties
        if name == "printed line" and report.when == "call"
    ]
    if lines:
        terminalreporter.section("counts")
        for line in lines:
            terminalreporter.write_line(line)
