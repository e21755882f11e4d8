"""The model that learned the world of clock_world.py, and a context around it."""

import shutil

import pytest
from clock_world import CONTEXT, SUMS, clock_rows, verify
from tiny import make_tokenizer

CHAT_TEMPLATE = (
    "{{ bos_token + ' ' }}{% for message in messages %}{{ message['content'] + ' ' }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
)


@pytest.fixture(scope="session")
def clock_tokenizer():
    return make_tokenizer(chat_template=CHAT_TEMPLATE)


@pytest.fixture(scope="session")
def clock_directory(learned, clock_tokenizer, tmp_path_factory):
    """The model that learned the sums, with a tokenizer that can chat about them."""
    directory = tmp_path_factory.mktemp("clock") / "model"
    shutil.copytree(learned, directory)
    clock_tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def clock_model(clock_directory):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(clock_directory).eval()


@pytest.fixture
def clock_exercises(clock_tokenizer):
    """Factory: the problems of some sums, in TRL's prompt-completion form."""
    from qsft.curate.exercises import find_form, find_gold, read_exercises

    form = find_form(["prompt", "completion"], clock_tokenizer, question=None, response=None, prompt="question")
    return lambda sums=SUMS, **changes: read_exercises(
        [{**row, **changes} for row in clock_rows(sums)], form, find_gold(["answer"], None)
    )


@pytest.fixture
def clock_context(clock_model, clock_tokenizer, tmp_path):
    """Factory: a context with the real sampler, the model in memory, and a directory of its own; parts replaced."""
    from qsft.curate.context import CurationContext, CurationInputs
    from qsft.curate.registry import Options, find_method
    from qsft.ledger import Ledger

    def make(directory="generations", **parts):
        inputs = CurationInputs(None, None, clock_model, clock_tokenizer)
        ledger = Ledger(tmp_path / directory)
        context = CurationContext(find_method("rft"), inputs, Options(), ledger, watch=lambda record: None)
        for name, part in {"verify": verify, "context_length": CONTEXT, **parts}.items():
            setattr(context, name, part)
        return context

    return make
