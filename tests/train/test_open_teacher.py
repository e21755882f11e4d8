"""Opening the teacher of a run: what raises an error before it costs anything, and which weights "base" means."""

import copy

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM

from qsft.targets.registry import make_target
from qsft.teacher.documents import Documents
from qsft.teacher.sources.transformers_source import TransformersSource
from qsft.train.open_teacher import moved_back_afterwards, open_cache
from qsft.train.teacher import resolve_teacher
from qsft.train.trainer import TargetSFTTrainer


@pytest.fixture
def saved(tiny_model, tmp_path):
    """Factory: the path of a saved tiny model, with a tokenizer or alone."""

    def make(tokenizer=None, name="teacher", **overrides):
        tiny_model(**{"seed": 5, **overrides}).save_pretrained(tmp_path / name)
        if tokenizer is not None:
            tokenizer.save_pretrained(tmp_path / name)
        return str(tmp_path / name)

    return make


@pytest.fixture
def renamed(tiny_tokenizer, tmp_path):
    """A tokenizer with another token at id 300."""
    tiny_tokenizer.save_pretrained(tmp_path / "renamed")
    file = tmp_path / "renamed" / "tokenizer.json"
    word = tiny_tokenizer.convert_ids_to_tokens(300)
    file.write_text(file.read_text().replace(f'"{word}": 300', '"other": 300'))
    return type(tiny_tokenizer).from_pretrained(tmp_path / "renamed")


@pytest.fixture
def longer(tiny_tokenizer):
    """A tokenizer with one added token that no head of 320 entries has an entry for, as Gemma 3's."""
    tokenizer = copy.deepcopy(tiny_tokenizer)
    tokenizer.add_tokens(["<image>"])
    return tokenizer


@pytest.mark.parametrize("live", [True, False], ids=["live", "cached"])
def test_a_teacher_with_other_tokens_at_the_same_ids_raises_an_error(trainer, data, saved, renamed, live):
    with pytest.raises(
        ValueError, match=r"does not match the one of the teacher.*id 300 is 'other' .* and 'w\d+' here"
    ):
        trainer(data.completion(), target="target_sft", teacher=saved(renamed), teacher_live=live)


@pytest.mark.parametrize("cache", [None, "cache"], ids=["live", "cached"])
def test_a_model_whose_head_is_too_small_raises_an_error(trainer, data, tiny_model, tmp_path, cache):
    settings = {"target": "target_sft", "teacher_cache": cache and str(tmp_path / cache)}
    with pytest.raises(ValueError, match=r"head of the teacher Qwen2.* has 319 entries, but the tokenizer has 320"):
        trainer(data.completion(), teacher=tiny_model(vocab_size=319), **settings)
    trainer(data.completion(), teacher=tiny_model(vocab_size=384), **settings)


@pytest.mark.parametrize("named", [True, False], ids=["by name", "in memory"])
def test_a_token_that_a_live_teacher_does_not_know_is_named_before_the_first_step(
    trainer, tiny_model, tiny_tokenizer, longer, saved, named
):
    """A token added to the student's tokenizer may pad, but not stand in a document."""
    student = tiny_model(vocab_size=321)
    teacher = saved(tiny_tokenizer) if named else tiny_model()
    settings = {"model": student, "processing_class": longer, "target": "kd", "teacher": teacher, "teacher_live": True}
    known = [{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}, {"input_ids": [5, 6], "labels": [-100, 6]}]
    unknown = {"input_ids": [5, 320, 7], "labels": [-100, -100, 7]}
    longer.pad_token = "<image>"
    trainer(Dataset.from_list(known), max_steps=1, **settings).train()
    with pytest.raises(ValueError, match="token id 320"):
        trainer(Dataset.from_list([*known, unknown]), **settings)


@pytest.mark.parametrize("live", [True, False], ids=["live", "cached"])
def test_dtype_of_the_init_kwargs_reaches_the_teacher(trainer, data, saved, tiny_tokenizer, live):
    settings = {"target": "target_sft", "teacher": saved(tiny_tokenizer), "teacher_live": live}
    made = trainer(data.completion(), teacher_model_init_kwargs={"dtype": "bfloat16", "revision": "main"}, **settings)
    if live:
        assert str(made.live_teacher.model.dtype) == "torch.bfloat16"
    else:
        assert made.cache.manifest.identity.dtype == "bfloat16"
        assert made.cache.manifest.identity.teacher["revision"] == "main"


def test_dtype_of_the_init_kwargs_reaches_a_base_that_is_copied(config, data, saved, tiny_tokenizer):
    settings = {"target": "sft_kl", "teacher_live": True, "model_init_kwargs": {"dtype": "bfloat16"}}
    rows = data.completion()
    name = saved(tiny_tokenizer)
    made = TargetSFTTrainer(name, config(**settings), teacher="base", train_dataset=rows)
    assert str(made.live_teacher.model.dtype) == "torch.bfloat16"


@pytest.mark.parametrize("live", [True, False], ids=["live", "cached"])
def test_a_directory_of_weights_alone_has_no_tokenizer_to_compare(trainer, data, saved, live):
    trainer(data.completion(), target="target_sft", teacher=saved(), teacher_live=live).train()


@pytest.mark.parametrize("target", ["target_sft", "label_smoothing"])
def test_added_tokens_need_no_entry_in_the_head(config, data, tiny_model, longer, saved, target):
    args = config(target=target, teacher_model_name_or_path=saved(longer))
    made = TargetSFTTrainer(tiny_model(), args, train_dataset=data.completion(), processing_class=longer)
    made.train()


def test_a_student_that_does_not_fit_costs_no_capture(trainer, data, tiny_model, tmp_path):
    settings = {"teacher": tiny_model(vocab_size=384), "teacher_cache": str(tmp_path / "cache")}
    with pytest.raises(ValueError, match="head of the student has 319 entries"):
        trainer(data.completion(), target="target_sft", model=tiny_model(vocab_size=319), **settings)
    assert not (tmp_path / "cache").exists()


@pytest.fixture
def fill_base(config, data, tiny_tokenizer, tmp_path, monkeypatch):
    """Factory: the cache of a sharded run's base, which is loaded again by its name."""

    def fill(student, **settings):
        args = config(target="sft_kl", **settings)
        monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
        args.teacher_cache = str(tmp_path / "cache")
        cached = resolve_teacher("base", make_target("sft_kl"), args, student)
        return open_cache(cached, Documents(data.tokens()), student, tiny_tokenizer, args)

    return fill


def test_a_sharded_base_is_loaded_again_as_the_student_was(saved, fill_base, caplog):
    student = AutoModelForCausalLM.from_pretrained(saved(), dtype="bfloat16")
    cache = fill_base(student, model_init_kwargs={"dtype": "bfloat16", "revision": "main"})
    assert cache.manifest.identity.dtype == "bfloat16"
    assert cache.manifest.identity.teacher["revision"] == "main"
    assert "has other weights" not in caplog.text


def test_a_sharded_base_with_other_weights_than_the_student_gives_a_warning(saved, fill_base, caplog):
    student = AutoModelForCausalLM.from_pretrained(saved())
    fill_base(student)
    assert "other weights" not in caplog.text
    with torch.no_grad():
        student.lm_head.weight.mul_(2)
    fill_base(student)
    assert "the student has other weights" in caplog.text


def test_a_sharded_base_must_have_a_name(fill_base, tiny_model):
    with pytest.raises(ValueError, match="must load the student's initial weights again"):
        fill_base(tiny_model())


def test_a_teacher_in_memory_is_moved_to_the_device_of_the_run_and_back(tiny_model):
    assert TransformersSource(tiny_model()).load().device.type == "cpu"
    assert TransformersSource(tiny_model(), device="meta").load().device.type == "meta"
    teacher = tiny_model().to("meta")
    with moved_back_afterwards(teacher):
        teacher.to_empty(device="cpu")
    assert teacher.device.type == "meta"


@pytest.mark.parametrize("first", ["teacher", "base"])
def test_a_bfloat16_teacher_and_the_float32_base_of_one_name_have_two_caches(
    config, data, tiny_model, tiny_tokenizer, tmp_path, monkeypatch, first
):
    monkeypatch.setenv("QSFT_CACHE", str(tmp_path / "root"))
    name = str(tmp_path / "model")
    tiny_model().to(torch.bfloat16).save_pretrained(name)
    tiny_tokenizer.save_pretrained(name)
    dtypes = {}
    for teacher in (name, "base") if first == "teacher" else ("base", name):
        made = TargetSFTTrainer(name, config(target="kd"), teacher=teacher, train_dataset=data.completion())
        dtypes[teacher] = (made.cache.path, made.cache.manifest.identity.dtype)
        again = TargetSFTTrainer(name, config(target="kd"), teacher=teacher, train_dataset=data.completion())
        assert again.cache.path == made.cache.path
    assert dtypes[name][1] == "bfloat16"
    assert dtypes["base"][1] == "float32"
    assert dtypes[name][0] != dtypes["base"][0]


def test_another_kind_of_teacher_chooses_where_its_cache_lies(trainer, data, saved, monkeypatch):
    class OtherSource(TransformersSource):
        def location_key(self):
            return "another kind"

    usual = trainer(data.completion(), target="kd", teacher=saved()).cache
    monkeypatch.setattr("qsft.teacher.sources.open_source.TransformersSource", OtherSource)
    other = trainer(data.completion(), target="kd", teacher=saved()).cache
    assert other.path != usual.path
    assert other.manifest.identity == usual.manifest.identity


def test_a_directory_that_is_neither_a_cache_nor_a_model_raises_an_error(trainer, data, tmp_path):
    with pytest.raises(FileNotFoundError, match="cannot be loaded as a model"):
        trainer(data.completion(), target="kd", teacher=str(tmp_path))


@pytest.mark.parametrize("cache", [None, "cache"], ids=["live", "cached"])
def test_a_model_that_was_trained_in_bf16_may_be_the_teacher(trainer, data, tmp_path, cache):
    first = trainer(data.completion(), target="dft", bf16=True)
    first.train()
    trainer(data.completion(), target="kd", teacher=first.model, teacher_cache=cache and str(tmp_path / cache)).train()
