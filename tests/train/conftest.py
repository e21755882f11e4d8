"""Fixtures of train/: data sets of every form TRL takes, and trainers that finish within a second or two."""

import random
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from torch import nn


def words(seed, low=3, high=14):
    rng = random.Random(seed)
    return " ".join(f"w{rng.randrange(250)}" for _ in range(rng.randint(low, high)))


def text_data(n=24):
    return Dataset.from_dict({"text": [f"{words(i)} " for i in range(n)]})


def completion_data(n=24):
    return Dataset.from_dict(
        {"prompt": [f"{words(i)} " for i in range(n)], "completion": [f"{words(1000 + i)} " for i in range(n)]}
    )


def chat_data(n=24):
    def turns(i):
        return [
            {"role": role, "content": words(10 * i + j, high=6)}
            for j, role in enumerate(("user", "assistant", "user", "assistant"))
        ]

    return Dataset.from_dict({"messages": [turns(i) for i in range(n)]})


def token_data(n=24):
    rows = []
    for i in range(n):
        rng = random.Random(i)
        ids = [rng.randrange(30, 300) for _ in range(rng.randint(4, 20))]
        prompt = rng.randint(1, len(ids) - 2)
        rows.append({"input_ids": ids, "labels": [-100] * prompt + ids[prompt:]})
    return Dataset.from_list(rows)


@pytest.fixture(scope="session")
def data():
    """The makers of data sets: data.text(n), data.completion(n), data.chat(n), data.tokens(n)."""
    return SimpleNamespace(text=text_data, completion=completion_data, chat=chat_data, tokens=token_data)


@pytest.fixture(autouse=True)
def caches_of_one_test(tmp_path, monkeypatch):
    """Teachers with the same weights share a folder: what one test captured must not serve another."""
    monkeypatch.setenv("QSFT_CACHE", str(tmp_path / "caches"))


@pytest.fixture
def config(tmp_path):
    """Factory of a TargetSFTConfig for CPU and float32; keywords override."""
    from qsft.train.config import TargetSFTConfig

    def make(**overrides):
        settings = {
            "output_dir": str(tmp_path / "run"),
            "use_cpu": True,
            "bf16": False,
            "report_to": [],
            "logging_steps": 1,
            "max_steps": 4,
            "save_strategy": "no",
            "per_device_train_batch_size": 4,
            "learning_rate": 1e-3,
            "max_length": 64,
            "target": "sft",
            "disable_tqdm": True,
            "gradient_checkpointing": False,
            "dataloader_pin_memory": False,
        }
        return TargetSFTConfig(**{**settings, **overrides})

    return make


@pytest.fixture
def trainer(config, tiny_model, tiny_tokenizer):
    """Factory of a TargetSFTTrainer on a tiny model; keywords the trainer takes go there, the rest to the config."""
    from qsft.train.trainer import TargetSFTTrainer

    own = ("model", "target_object", "teacher", "peft_config", "eval_dataset", "callbacks", "compute_metrics")
    own += ("data_collator", "compute_loss_func", "formatting_func", "optimizers", "processing_class")

    def make(data=None, **overrides):
        mine = {name: overrides.pop(name) for name in own if name in overrides}
        model = mine.pop("model", None) or tiny_model()
        target = mine.pop("target_object", None)
        return TargetSFTTrainer(
            model,
            config(**overrides),
            target=target,
            train_dataset=completion_data() if data is None else data,
            **{"processing_class": tiny_tokenizer, **mine},
        )

    return make


@pytest.fixture
def logged():
    """logged(trainer, "loss") -> the logged values, in order."""

    def values(trainer, key="loss"):
        return [entry[key] for entry in trainer.state.log_history if key in entry]

    return values


class Copycat(nn.Module):
    """A teacher that is certain of the token which follows: one-hot at every label. It looks ahead, as no model can."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, 1)
        self.lm_head = nn.Linear(config.vocab_size, config.vocab_size, bias=False)
        self.lm_head.weight.data = 1000 * torch.eye(config.vocab_size)

    def base_model(self, input_ids, **_):
        ahead = nn.functional.one_hot(input_ids.roll(-1, dims=1), self.config.vocab_size)
        return SimpleNamespace(last_hidden_state=ahead.float())

    def forward(self, input_ids, **_):
        return SimpleNamespace(logits=self.lm_head(self.base_model(input_ids).last_hidden_state))

    def get_output_embeddings(self):
        return self.lm_head

    def get_input_embeddings(self):
        return self.embed


@pytest.fixture
def copycat(tiny_model):
    """The teacher whose distribution is the label itself."""
    return Copycat(tiny_model().config)
