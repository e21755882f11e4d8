"""Fixtures every room shares: a word-level tokenizer, tiny random models, the profiler's peak; no downloads."""

import json
import os

# Before torch is imported: several test processes share two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
from jaxtyping import install_import_hook

# Shapes are types: checked at run time here, free for the user. Must stand before the first import of qsft.
# (losses.head is left out: accelerate rebuilds a ModelOutput from a dict in its first field.)
install_import_hook(
    ["qsft.targets", "qsft.losses.fused", "qsft.losses.reference", "qsft.losses.sums"], "typecheck.check"
)

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|> ' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + ' ' + eos_token }}{% endgeneration %}"
    "{% else %}{{ message['content'] }}{% endif %}{{ ' ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|> ' }}{% endif %}"
)
SPECIAL = ("<|pad|>", "<|bos|>", "<|eos|>", "<|unk|>")
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
VOCAB_SIZE = 320


def make_tokenizer(vocab_size=VOCAB_SIZE):
    """Special and role tokens first, then single digits and signs, then w0, w1, ... up to `vocab_size`."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    signs = [*"0123456789", *"+-*/=().,:?!"]
    words = [*SPECIAL, *ROLES, *signs]
    words += [f"w{i}" for i in range(vocab_size - len(words))]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<|unk|>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    pad, bos, eos, unk = SPECIAL
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=pad,
        bos_token=bos,
        eos_token=eos,
        unk_token=unk,
        additional_special_tokens=list(ROLES),
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def make_model(seed=0, **overrides):
    """A random Qwen2 of two layers and hidden size 64; `overrides` are fields of its config."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        **{
            "vocab_size": VOCAB_SIZE,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
            "tie_word_embeddings": False,
            "initializer_range": 0.1,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
            **overrides,
        }
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config)


@pytest.fixture(scope="session")
def tiny_tokenizer():
    """A word-level PreTrainedTokenizerFast (320 words) whose chat template marks the assistant's tokens."""
    return make_tokenizer()


@pytest.fixture
def tiny_model():
    """Factory: `tiny_model(seed=1, tie_word_embeddings=True)` is a random Qwen2, the same for the same arguments."""
    return make_model


def tiny_llama(folder, seed, vocab_size, tokenizer):
    """A random Llama: unlike Qwen2's, its directory reloads the tokenizer that was saved with it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.1,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="session")
def tiny_files(tmp_path_factory, tiny_tokenizer):
    """Student, teacher (with a head of another padded size) and 70 rows of every data set."""
    folder = tmp_path_factory.mktemp("tiny")
    tiny_llama(folder / "student", 0, 320, tiny_tokenizer)
    tiny_llama(folder / "teacher", 1, 384, tiny_tokenizer)
    rows = []
    for i in range(70):
        question, answer = f"w{i} + w{i + 1} = ?", " ".join(f"w{j}" for j in range(i % 9 + 1))
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
def profiled_peak():
    """`profiled_peak(run)`: the most bytes the CPU allocator had handed out while `run` ran."""
    from torch.profiler import ProfilerActivity, profile

    def peak_of(run):
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
            run()
        events = [event for event in prof.profiler.kineto_results.events() if event.name() == "[memory]"]
        live = peak = 0
        for event in sorted(events, key=lambda event: event.start_ns()):
            live += event.nbytes()
            peak = max(peak, live)
        return peak

    return peak_of
