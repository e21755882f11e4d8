"""Documents, and a tiny teacher's cache of them, for the tests of the teacher subpackage."""

import os

import numpy as np
import pytest
import torch


def make_documents(count, seed=0, longest=24, vocab_size=320):
    """Random documents whose first part is a prompt; labels of the prompt are ignored."""
    rng = np.random.default_rng(seed)
    documents = []
    for _ in range(count):
        length = int(rng.integers(3, longest))
        ids = rng.integers(7, vocab_size, length).tolist()
        prompt = int(rng.integers(0, length))
        documents.append({"input_ids": ids, "labels": [-100] * prompt + ids[prompt:]})
    return documents


@pytest.fixture
def documents():
    """Factory of random documents."""
    return make_documents


@pytest.fixture
def build(tmp_path, tiny_model, tiny_tokenizer):
    """Factory: build a cache of documents with a small k, small batches and no progress."""
    from qsft.teacher.capture.capture import build_cache

    def make(dataset, name="cache", teacher=None, **options):
        options = {"top_k": 8, "batch_tokens": 128, "progress": False, "tokenizer": tiny_tokenizer} | options
        teacher = tiny_model() if teacher is None else teacher
        return build_cache(dataset, teacher, tmp_path / name, **options)

    return make


@pytest.fixture
def teacher(tmp_path, tiny_model, tiny_tokenizer):
    """The path of a teacher with its tokenizer, as a user has it."""
    tiny_model().save_pretrained(tmp_path / "teacher")
    tiny_tokenizer.save_pretrained(tmp_path / "teacher")
    return tmp_path / "teacher"


@pytest.fixture
def content():
    """What a cache says about documents, as bytes: equal means equal bit for bit."""

    def of(cache, dataset):
        log_probs = (cache.lookup(d["input_ids"], d["labels"]) for d in dataset)
        columns = ("ids", "logps", "label_logp", "log_tail")
        return [tuple(getattr(r, name).numpy().tobytes() for name in columns) for r in log_probs]

    return of


@pytest.fixture
def fork():
    """Run a function in a forked child and return its process id; the child ends with code 0 or 1."""

    def start(work, **environment):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.environ.update(environment)
                torch.set_num_threads(1)
                work()
                code = 0
            finally:
                os._exit(code)
        return child

    return start
