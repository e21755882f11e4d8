"""A small world for the evaluation room: sums of two digits, a tokenizer for them and a model that learned some."""

import argparse
import json

import pytest

WORDS = ["<|pad|>", "<|eos|>", "<|unk|>", *"0123456789", "+", "=", *(f"\\boxed{{{i}}}" for i in range(19)), "so"]
SUMS = [(a, b) for a in range(10) for b in range(10)]


@pytest.fixture(scope="session")
def sum_tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<|unk|>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<|pad|>", eos_token="<|eos|>", unk_token="<|unk|>"
    )


@pytest.fixture(scope="session")
def sum_model(sum_tokenizer):
    """Trained until it knows a good part of the sums, and answers `so so \\boxed{7}` with as many `so` as it likes."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(WORDS),
            hidden_size=48,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            eos_token_id=1,
            pad_token_id=0,
        )
    )
    texts = [f"{a} + {b} = {'so ' * ((a * b) % 4)}\\boxed{{{a + b}}} <|eos|>" for a, b in SUMS]
    batch = sum_tokenizer(texts, padding=True, padding_side="right", return_tensors="pt")
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    labels[:, :4] = -100
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(150):
        model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


@pytest.fixture(scope="session")
def sum_directory(sum_model, sum_tokenizer, tmp_path_factory):
    directory = tmp_path_factory.mktemp("trained")
    sum_model.save_pretrained(directory)
    sum_tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def sum_file(tmp_path_factory):
    """A task file of 40 sums."""
    path = tmp_path_factory.mktemp("tasks") / "sums.jsonl"
    rows = [{"problem": f"{a} + {b} =", "answer": str(a + b)} for a, b in SUMS[::5]] + [
        {"problem": f"{a} + {b} =", "answer": str(a + b)} for a, b in SUMS[1::5]
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def command():
    """command("eval", "DIR", "--n", "4"): the exit code of a command, through its own parser."""
    from qsft.commands import compare as compare_command
    from qsft.commands import eval as eval_command

    def call(*words):
        parser = argparse.ArgumentParser()
        commands = parser.add_subparsers()
        for module in (eval_command, compare_command):
            module.register(commands)
        args = parser.parse_args([str(word) for word in words])
        return args.run(args)

    return call
