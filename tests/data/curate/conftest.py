"""The model that learned the world of clock_world.py, and a workshop around it."""

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
def clock_problems(clock_tokenizer):
    """Factory: the problems of some sums, in TRL's prompt-completion form."""
    from qsft.data.curate.forms import PromptCompletion
    from qsft.data.curate.problems import read_problems

    return lambda sums=SUMS, **changes: read_problems(
        [{**row, **changes} for row in clock_rows(sums)], PromptCompletion(clock_tokenizer), gold="answer"
    )


class Alone:
    rank, count = 0, 1

    def wait(self):
        pass


@pytest.fixture
def clock_workshop(clock_model, clock_tokenizer, tmp_path):
    """Factory: a workshop with the real sampler, the model in memory, and a directory of its own."""
    from qsft.data.curate.ledger import Ledger
    from qsft.data.curate.workshop import Workshop
    from qsft.evals.progress import Progress
    from qsft.evals.protocol import Sampling
    from qsft.evals.request import Request
    from qsft.evals.sample import Sampler

    def draw(requests, how, model):
        return Sampler(clock_model, clock_tokenizer, Sampling(n=1, **how)).sample([Request(*one) for one in requests])

    def make(directory="generations", **changes):
        group = changes.pop("group", Alone())
        ledger = Ledger(tmp_path / directory, group, lambda *stage: Progress(*stage, silent=True))
        inside = lambda: (clock_model, clock_tokenizer)  # noqa: E731
        settings = {"draw": draw, "verify": verify, "model": inside, "context": CONTEXT, **changes}
        return Workshop(ledger=ledger, **settings)

    return make
