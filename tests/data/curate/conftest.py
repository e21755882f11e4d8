"""A model that was trained for some seconds in the world of clock_world.py, and a workshop around it."""

import pytest
from clock_world import CONTEXT, SUMS, WORDS, clock_rows, corpus, verify

STEPS = 150


@pytest.fixture(scope="session")
def clock_tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<|unk|>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<|pad|>", bos_token="<|bos|>", eos_token="<|eos|>", unk_token="<|unk|>"
    )
    tokenizer.chat_template = (
        "{{ bos_token + ' ' }}{% for message in messages %}{{ message['content'] + ' ' }}"
        "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    )
    return tokenizer


@pytest.fixture(scope="session")
def clock_directory(clock_tokenizer, tmp_path_factory):
    """A model trained for some seconds, saved with its tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=len(WORDS), max_position_embeddings=CONTEXT, tie_word_embeddings=True, **shape, **ends)
    )
    texts = [f"{prompt} {response} <|eos|>" for prompt, response in corpus()]
    batch = clock_tokenizer(texts, padding=True, padding_side="right", return_tensors="pt")
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    starts = torch.tensor([len(prompt.split()) for prompt, _ in corpus()])
    labels[torch.arange(labels.shape[1]) < starts[:, None]] = -100
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=STEPS)
    order = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        rows = torch.randint(len(texts), (96,), generator=order)
        inputs = {name: batch[name][rows] for name in ("input_ids", "attention_mask")}
        model(**inputs, labels=labels[rows]).loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    directory = tmp_path_factory.mktemp("clock")
    model.save_pretrained(directory)
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
