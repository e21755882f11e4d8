"""A small data set with a student and a teacher's cache; the browser is the one all pages are looked at with."""

import numpy as np
import pytest
from browser import browser, chromium  # noqa: F401  (fixtures)

EVIL = "<script>window.hacked=1</script>"
IMAGE = "<img/src=x/onerror=window.hacked=1>"
WORDS = ("<pad>", "<eos>", "<unk>", EVIL, IMAGE, "</script>", *(f"w{i}" for i in range(26)))


@pytest.fixture(scope="session")
def tokenizer():
    """One word, one token; some words are HTML that means harm."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def random_model(noise=0.0):
    """A model of 32 tokens that is sure of some tokens and unsure of others; with noise it is another one, akin."""
    import torch
    from transformers import Olmo2Config, Olmo2ForCausalLM

    # Olmo2: its tokenizer is loaded again as it was saved; beside a Qwen2 config AutoTokenizer makes a BPE of it.
    config = Olmo2Config(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        initializer_range=0.4,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = Olmo2ForCausalLM(config).eval()
        with torch.no_grad():
            model.lm_head.weight *= 2
            for weight in model.parameters() if noise else ():
                weight += noise * weight.std().nan_to_num() * torch.randn_like(weight)
        return model


@pytest.fixture(scope="session")
def student():
    return random_model()


@pytest.fixture(scope="session")
def teacher():
    return random_model(noise=0.5)


@pytest.fixture(scope="session")
def documents(student, teacher):
    """Twelve documents; most labels are what some model would write, so that all quadrants occur."""
    import torch

    random = np.random.default_rng(0)
    rows = []
    for number in range(12):
        ids = torch.from_numpy(random.integers(6, len(WORDS), size=(1, 3)))
        for _ in range(14):
            # Half of the tokens are the student's choice, a quarter the teacher's, the rest are anything.
            chooser = [student, student, teacher, None][random.integers(4)]
            with torch.no_grad():
                choice = random.integers(3, len(WORDS)) if chooser is None else int(chooser(ids).logits[0, -1].argmax())
            ids = torch.cat([ids, torch.tensor([[int(choice)]])], dim=1)
        input_ids = [*ids[0].tolist(), *((3, 4, 5) if number == 0 else ()), 1]
        rows.append({"input_ids": input_ids, "labels": [-100] * 3 + input_ids[3:]})
    return rows


@pytest.fixture(scope="session")
def cache(documents, tokenizer, teacher, tmp_path_factory):
    from qsft.teacher.capture import build_cache

    path = tmp_path_factory.mktemp("explore") / "cache"
    return build_cache(documents, teacher, path, tokenizer=tokenizer, k=8, progress=False)
