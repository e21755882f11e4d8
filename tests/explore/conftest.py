"""A small data set with a student and a teacher's cache; the browser that opens the pages."""

import numpy as np
import pytest
import tiny
from browser import browser, chromium  # noqa: F401  (fixtures)

WORDS = tiny.vocabulary()
EVIL = [WORDS.index(word) for word in tiny.EVIL]
FIRST = WORDS.index("w0")


@pytest.fixture(scope="session")
def tokenizer(tiny_tokenizer):
    """One word, one token; some words are hostile HTML."""
    return tiny_tokenizer


def make_model(noise=0.0):
    """A model that is sure of some tokens and unsure of others; with noise, one that differs from it a little."""
    import torch

    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = tiny.make_model(1, "olmo2", **shape, initializer_range=0.4).eval()
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(1)
        model.lm_head.weight *= 2
        for weight in model.parameters() if noise else ():
            weight += noise * weight.std().nan_to_num() * torch.randn_like(weight)
    return model


@pytest.fixture(scope="session")
def student():
    return make_model()


@pytest.fixture(scope="session")
def teacher():
    return make_model(noise=0.4)


@pytest.fixture(scope="session")
def documents(student, teacher):
    """Twelve documents; most labels are what some model would write, so that all quadrants occur."""
    import torch

    random = np.random.default_rng(0)
    rows = []
    for number in range(12):
        ids = random.integers(FIRST, len(WORDS), size=3).tolist()
        for _ in range(14):
            # Half of the tokens are the student's choice, a quarter the teacher's, the rest are anything.
            chooser = [student, student, teacher, None][random.integers(4)]
            with torch.no_grad():
                choice = None if chooser is None else int(chooser(torch.tensor([ids])).logits[0, -1].argmax())
            ids.append(int(random.integers(FIRST, len(WORDS))) if choice is None else choice)
        ids += [*(EVIL if number == 0 else ()), WORDS.index("<|eos|>")]
        rows.append({"input_ids": ids, "labels": [-100] * 3 + ids[3:]})
    return rows


@pytest.fixture(scope="session")
def cache(documents, tokenizer, teacher, tmp_path_factory):
    from qsft.teacher.capture.capture import build_cache

    path = tmp_path_factory.mktemp("explore") / "cache"
    return build_cache(documents, teacher, path, tokenizer=tokenizer, top_k=8, progress=False)
