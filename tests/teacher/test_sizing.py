"""teacher_top_p and teacher_batch_tokens, from a trainer's config and from a recipe, reach the capture."""

import pytest
from datasets import Dataset

from qsft.teacher.sources import transformers_source

SIZES = {
    "teacher_top_k": 16,
    "teacher_top_p": 0.03,
    "teacher_batch_tokens": 64,
    "teacher_cache_encoding": "compact",
}


@pytest.fixture
def forwards(monkeypatch):
    """Tokens, padding included, of every batch that a capture computes."""
    sizes = []
    compute = transformers_source.teacher_log_probs

    def watched(model, k, **batch):
        sizes.append(batch["input_ids"].numel())
        return compute(model, k, **batch)

    monkeypatch.setattr(transformers_source, "teacher_log_probs", watched)
    return sizes


def check(cache, forwards):
    """Of k = 16 slots the capture kept those with 3 % of the mass, and it never computed more than 64 tokens."""
    identity = cache.manifest.identity
    measured = cache.manifest.measured
    assert (identity.top_k, identity.top_p, identity.cache_encoding) == (16, 0.03, "compact")
    assert 1 <= measured["mean_k"] < 16
    assert len(forwards) > 1
    assert max(forwards) <= 64 < sum(forwards)


def test_from_the_trainer(tiny_files, tiny_model, tiny_tokenizer, documents, tmp_path, forwards):
    from qsft.train.config import TargetSFTConfig
    from qsft.train.trainer import TargetSFTTrainer

    args = TargetSFTConfig(
        output_dir=str(tmp_path / "run"),
        target="target_sft",
        teacher_model_name_or_path=str(tiny_files / "teacher"),
        teacher_cache=str(tmp_path / "cache"),
        **SIZES,
        max_steps=1,
        use_cpu=True,
        bf16=False,
        report_to=[],
        disable_tqdm=True,
    )
    data = Dataset.from_list(documents(30))
    trainer = TargetSFTTrainer(tiny_model(), args, train_dataset=data, processing_class=tiny_tokenizer)
    check(trainer.cache, forwards)
    with pytest.raises(ValueError, match="teacher_batch_tokens"):
        TargetSFTConfig(output_dir="run", teacher_batch_tokens=0, use_cpu=True, bf16=False)


def test_from_a_recipe(tiny_files, tmp_path, forwards):
    from qsft.recipe.recipe_cache import build_recipe_cache
    from qsft.recipe.recipe_file import read_recipe

    words = {
        "model_name_or_path": tiny_files / "student",
        "teacher_model_name_or_path": tiny_files / "teacher",
        "teacher_cache": tmp_path / "cache",
        "output_dir": tmp_path / "run",
        "data_dir": tiny_files / "numina.jsonl",
        "max_length": 64,
        "global_batch_size": 16,
        "use_cpu": "true",
        "bf16": "false",
        "dtype": "float32",
        **SIZES,
    }
    overrides = [word for key, value in words.items() for word in (f"--{key}", str(value))]
    check(build_recipe_cache(read_recipe("numina_qwen_math_1p5b", overrides)), forwards)
