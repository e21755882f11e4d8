"""What a target reads beside the student: one test per line of the table of `resolve_teacher`."""

import logging
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model

from qsft.targets.registry import make_target
from qsft.targets.target import Target
from qsft.targets.trust import Prob
from qsft.teacher.documents import Documents
from qsft.train.teacher import CachedTeacher, LiveModel, resolve_teacher

LORA = {"r": 2, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}


@pytest.fixture
def resolve(config, tiny_model):
    """resolve("kd", teacher, student=…, peft_config=…, SETTING=…) -> what the trainer would read."""

    def call(target, teacher=None, *, student=None, peft_config=None, quantization_config=None, **settings):
        target = make_target(target) if isinstance(target, str) else target
        student = tiny_model() if student is None else student
        return resolve_teacher(teacher, target, config(**settings), student, peft_config, quantization_config)

    return call


@pytest.fixture
def cache(tmp_path, data, tiny_model, tiny_tokenizer):
    """A cache of two documents."""
    from qsft import build_cache

    documents = Documents(data.tokens(2))
    return build_cache(documents, tiny_model(), tmp_path / "cache", tokenizer=tiny_tokenizer, top_k=4, progress=False)


@pytest.fixture
def sharded(monkeypatch):
    """A launch under FSDP."""
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")


@pytest.fixture
def warnings(caplog):
    """The warnings so far, as one text."""
    caplog.set_level(logging.WARNING)
    return lambda: caplog.text


def assert_is_copy(model, student):
    assert model is not student
    assert not any(parameter.requires_grad for parameter in model.parameters())
    torch.testing.assert_close(model.state_dict(), student.state_dict(), rtol=0, atol=0)


# ---- targets that read no teacher ----


def test_a_target_without_a_teacher_reads_nothing(resolve, warnings):
    assert resolve("dft") is None
    assert resolve("dft", teacher_model_name_or_path="org/teacher", teacher_cache="cache") is None
    assert warnings() == ""


def test_a_teacher_that_the_target_does_not_read_is_not_used_with_a_warning(resolve, warnings):
    assert resolve("dft", "org/teacher") is None
    assert "the given one is not used" in warnings()


def test_a_function_may_read_a_teacher_although_it_does_not_declare_it(resolve):
    target = Target(trust=Prob(1.0), residual=lambda view: view.teacher)
    assert resolve(target, "org/teacher").source.model == "org/teacher"


# ---- targets that read a teacher ----


def test_a_target_that_reads_a_teacher_needs_one(resolve):
    formula = r"γ = 0, π̃ = π_T, scale = 1"
    with pytest.raises(ValueError, match=rf"the target \({formula}\) needs a teacher, but no teacher was given"):
        resolve("kd")


def test_a_cache_alone_must_be_complete(resolve, cache):
    expected = CachedTeacher(cache.path, source=None)
    assert resolve("kd", cache) == expected
    assert resolve("kd", str(cache.path)) == expected
    assert resolve("kd", cache.path) == expected
    assert resolve("kd", teacher_cache=str(cache.path)) == expected


def test_a_path_object_without_a_model_is_the_directory_of_a_cache(resolve, tmp_path):
    assert resolve("kd", tmp_path / "missing") == CachedTeacher(tmp_path / "missing", source=None)


def test_a_model_completes_a_cache_that_is_given_beside_it(resolve, cache):
    by_argument = resolve("kd", cache, teacher_model_name_or_path="org/teacher")
    by_config = resolve("kd", teacher_cache=str(cache.path), teacher_model_name_or_path="org/teacher")
    both = resolve("kd", "org/teacher", teacher_cache=str(cache.path))
    for resolved in (by_argument, by_config, both):
        assert resolved.directory == cache.path
        assert resolved.source.model == "org/teacher"


def test_a_named_model_writes_to_the_default_cache(resolve, tmp_path):
    kwargs = {"dtype": "bfloat16"}
    for resolved in (
        resolve("kd", "org/teacher", teacher_model_init_kwargs=kwargs),
        resolve("kd", teacher_model_name_or_path="org/teacher", teacher_model_init_kwargs=kwargs),
    ):
        assert isinstance(resolved, CachedTeacher)
        assert resolved.directory is None
        assert resolved.source.model == "org/teacher"
        assert resolved.source.load_kwargs(None) == kwargs
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    assert resolve("kd", tmp_path / "model").source.model == str(tmp_path / "model")


def test_a_named_model_runs_live_with_teacher_live(resolve):
    resolved = resolve("kd", "org/teacher", teacher_live=True)
    assert isinstance(resolved, LiveModel)
    assert resolved.source.model == "org/teacher"


def test_a_model_in_memory_runs_live(resolve, tiny_model):
    teacher = tiny_model(seed=5)
    resolved = resolve("kd", teacher)
    assert isinstance(resolved, LiveModel)
    assert resolved.source.model is teacher


def test_a_model_in_memory_writes_to_a_cache_that_is_named(resolve, tiny_model, tmp_path):
    teacher = tiny_model(seed=5)
    resolved = resolve("kd", teacher, teacher_cache=str(tmp_path / "cache"))
    assert resolved.directory == tmp_path / "cache"
    assert resolved.source.model is teacher


# ---- teacher="base" ----


def test_the_base_is_captured_from_the_student_before_training(resolve):
    by_argument = resolve("kd", "base", student="org/student", model_init_kwargs={"dtype": "bfloat16"})
    by_config = resolve("kd", student="org/student", teacher_model_name_or_path="base")
    for resolved in (by_argument, by_config):
        assert isinstance(resolved, CachedTeacher)
        assert resolved.directory is None
        assert resolved.source.is_student
        assert resolved.student_name == "org/student"
    assert by_argument.source.load_kwargs("org/student")["dtype"] == "bfloat16"
    assert by_config.source.load_kwargs("org/student")["dtype"] == "float32"


def test_the_base_has_the_dtype_of_the_student(resolve, tiny_model):
    base = resolve("kd", "base").source
    assert base.load_kwargs(tiny_model().to(torch.bfloat16))["dtype"] == torch.bfloat16
    assert base.load_kwargs("org/student")["dtype"] == "float32"  # as TRL loads a name
    half = resolve("kd", "base", model_init_kwargs={"dtype": "bfloat16"}).source
    assert half.load_kwargs("org/student")["dtype"] == "bfloat16"


def test_a_quantized_student_has_a_quantized_base(resolve):
    quantization = {"load_in_4bit": True}
    resolved = resolve("kd", "base", student="org/student", quantization_config=quantization)
    assert resolved.source.load_kwargs("org/student")["quantization_config"] == quantization


def test_a_live_base_is_a_copy_of_the_student(resolve, tiny_model):
    student = tiny_model()
    resolved = resolve("kd", "base", student=student, teacher_live=True)
    assert isinstance(resolved, LiveModel)
    assert_is_copy(resolved.source.model, student)
    assert resolve("kd", "base", student="org/student", teacher_live=True).source.model == "org/student"


def test_the_base_of_an_adapter_is_the_student_without_it(resolve, tiny_model):
    wrapped = get_peft_model(tiny_model(), LoraConfig(**LORA))
    for resolved in (resolve("kd", "base", student=wrapped), resolve("kd", "base", peft_config=LoraConfig(**LORA))):
        assert isinstance(resolved, LiveModel)
        assert resolved.source.is_student


def test_the_base_of_an_adapter_writes_to_a_cache_that_is_named(resolve, tmp_path):
    resolved = resolve("kd", "base", peft_config=LoraConfig(**LORA), teacher_cache=str(tmp_path))
    assert isinstance(resolved, CachedTeacher)
    assert resolved.source.is_student


@pytest.mark.parametrize("initialization", ["pissa", "pissa_niter_4", "olora", "corda", "loftq", "lora_ga", "kasa"])
def test_the_base_of_an_adapter_that_changes_the_base_is_the_original_model(resolve, tiny_model, initialization):
    adapter = LoraConfig(**LORA)
    if initialization == "kasa":
        adapter.kasa_config = {}  # PEFT 0.21 has this field
    else:
        adapter.init_lora_weights = initialization
    student = tiny_model()
    in_memory = resolve("kd", "base", student=student, peft_config=adapter)
    assert isinstance(in_memory, LiveModel)
    assert_is_copy(in_memory.source.model, student)
    assert resolve("kd", "base", student="org/student", peft_config=adapter).source.model == "org/student"


@pytest.mark.parametrize("active", ["first", "second"])
def test_the_base_of_a_model_that_pissa_has_changed_cannot_be_read(resolve, tiny_model, active):
    student = get_peft_model(tiny_model(), LoraConfig(**LORA, init_lora_weights="pissa"), adapter_name="first")
    student.add_adapter("second", LoraConfig(**LORA))
    student.set_adapter(active)
    with pytest.raises(
        ValueError, match=r"init_lora_weights='pissa'.*so the base without the adapter is not the original model"
    ):
        resolve("kd", "base", student=student)


@pytest.mark.parametrize("peft_config", [None, LoraConfig(**LORA)], ids=["full", "adapter"])
def test_the_base_of_a_sharded_student_is_loaded_again_by_its_name(resolve, sharded, tiny_model, tmp_path, peft_config):
    student = tiny_model()
    student.config._name_or_path = str(tmp_path)
    for given, name in ((student, str(tmp_path)), ("org/student", "org/student")):
        cached = resolve("kd", "base", student=given, peft_config=peft_config)
        live = resolve("kd", "base", student=given, peft_config=peft_config, teacher_live=True)
        assert isinstance(cached, CachedTeacher)
        assert isinstance(live, LiveModel)
        assert cached.source.model == live.source.model == name


def test_the_base_of_a_sharded_student_without_a_name_cannot_be_loaded_again(resolve, sharded):
    with pytest.raises(ValueError, match="must load the student's initial weights again"):
        resolve("kd", "base")


# ---- targets that read a reference ----


def test_the_reference_is_the_base_by_default(resolve):
    resolved = resolve("sft_kl", teacher_model_name_or_path="org/teacher", teacher_cache="cache of the teacher")
    assert resolved.source.is_student
    assert resolved.directory is None


def test_the_reference_of_the_config_is_read(resolve):
    named = resolve("sft_kl", reference_model_name_or_path="org/reference", teacher_model_name_or_path="org/teacher")
    assert named.source.model == "org/reference"
    settings = {"teacher_model_name_or_path": "org/teacher", "teacher_cache": "cache"}
    teacher = resolve("sft_kl", reference_model_name_or_path="teacher", **settings)
    assert teacher.source.model == "org/teacher"
    assert teacher.directory == Path("cache")


def test_a_teacher_given_for_a_reference_is_read_with_a_warning(resolve, warnings):
    resolved = resolve("sft_kl", "org/teacher", reference_model_name_or_path="org/reference")
    assert resolved.source.model == "org/teacher"
    assert "org/teacher is read as the reference" in warnings()


def test_a_cache_alone_is_read_as_the_reference_with_a_warning(resolve, cache, tmp_path, warnings):
    assert resolve("sft_kl", teacher_cache=str(cache.path)) == CachedTeacher(cache.path, source=None)
    assert "is read as the reference" in warnings()
    new = resolve("sft_kl", teacher_cache=str(tmp_path / "new"))  # the base completes a cache that does not exist yet
    assert new.directory == tmp_path / "new"
    assert new.source.is_student


# ---- iw_sft's own settings ----


def test_a_column_of_weights_takes_the_place_of_the_reference(resolve, warnings):
    assert resolve("iw_sft", weight_column="weight") is None
    assert resolve("iw_sft").source.is_student
    assert warnings() == ""


def test_iw_sft_cannot_train_documents_without_a_reference(resolve):
    with pytest.raises(ValueError, match="leaves iw_sft without weights"):
        resolve("iw_sft", teacher_missing="student")
