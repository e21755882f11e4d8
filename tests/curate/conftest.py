"""A small model that learned the sums of sum_tasks.py, exercises about them, and a context to curate them in."""

import shutil

import pytest
from sum_tasks import CONTEXT, SUMS, clock_rows, verify
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
    """The model that learned the sums, with a tokenizer that has a chat template."""
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
    """Factory: the exercises of some sums, in TRL's prompt-completion format; `changes` replace columns."""
    from qsft.curate.exercises import read_exercises
    from qsft.curate.gold_answers import make_gold_finder
    from qsft.curate.row_formats import find_row_reader

    columns = ["prompt", "completion"]
    read_row = find_row_reader(columns, clock_tokenizer, question_column=None, response_column=None, preset="question")
    find_gold = make_gold_finder(["answer"], None)

    def make(sums=SUMS, **changes):
        rows = [{**row, **changes} for row in clock_rows(sums)]
        return read_exercises(rows, read_row, find_gold)

    return make


@pytest.fixture
def clock_context(clock_model, clock_tokenizer, tmp_path):
    """Factory: a context with the real sampler and the model in memory; `parts` replace its attributes."""
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
