"""Whatever changes a teacher's numbers is part of its cache's identity and of its default location."""

import json
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, PromptTuningConfig, get_peft_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from qsft.teacher.cache import TeacherCache
from qsft.teacher.identity import teacher_difference
from qsft.teacher.live import LiveTeacher
from qsft.teacher.location import default_cache_directory
from qsft.teacher.sources.transformers_source import TransformersSource, loading_arguments

SETTINGS = {"top_k": 8, "cache_encoding": "exact"}


@pytest.fixture
def location(tiny_tokenizer, tmp_path, monkeypatch):
    """The default directory of a teacher's cache, below a root of the test's own."""
    monkeypatch.setenv("QSFT_CACHE", str(tmp_path / "root"))

    def of(teacher, **options):
        return default_cache_directory(TransformersSource(teacher, **options), tiny_tokenizer, **SETTINGS)

    return of


@pytest.fixture
def adapter(tmp_path, teacher, tiny_model, tiny_tokenizer):
    """Factory: save a LoRA adapter of `teacher` whose weights are not zero."""

    def save(name="adapter", base=teacher, alpha=8, seed=0, tokenizer=True):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_pretrained(base)
        config = LoraConfig(r=4, lora_alpha=alpha, target_modules=["q_proj", "v_proj"])
        model = get_peft_model(model, config)
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                if "lora_B" in parameter_name:
                    parameter.normal_()
        model.save_pretrained(tmp_path / name)
        if tokenizer:
            tiny_tokenizer.save_pretrained(tmp_path / name)
        return tmp_path / name

    return save


CHANGES = [
    {"quantization_config": BitsAndBytesConfig(load_in_8bit=True)},
    {"quantization_config": BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=3.0)},
    {"attn_implementation": "eager"},
    {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    {"rms_norm_eps": 0.1},
    {"dtype": torch.bfloat16},
    {"torch_dtype": "float16"},
    {"subfolder": ""},
    {"experts_implementation": "eager"},
]
NO_CHANGES = [
    {"device_map": "auto", "max_memory": {0: "1GB"}},
    {"trust_remote_code": True},
    {"token": "hf_secret"},
    {"low_cpu_mem_usage": True},
    {"dtype": torch.float32},  # the checkpoint's own
    {"dtype": "auto"},
]


def test_every_argument_that_may_change_numbers_has_a_location_of_its_own(location, teacher):
    plain = location(teacher)
    changed = [location(teacher, model_kwargs=kwargs) for kwargs in CHANGES]
    assert len({plain, *changed}) == 1 + len(CHANGES)
    assert {location(teacher, model_kwargs=kwargs) for kwargs in NO_CHANGES} == {plain}
    assert location(teacher, model_kwargs=CHANGES[0]) == changed[0]


def test_an_argument_that_cannot_be_recorded_is_named():
    with pytest.raises(ValueError, match="loading argument experts is a object, which cannot be recorded"):
        loading_arguments({"experts": object()})


def test_teachers_that_differ_in_loading_never_share_a_directory(build, documents, teacher):
    data = documents(5)
    cache = build(data, teacher=teacher, model_kwargs={"attn_implementation": "eager"})
    assert cache.manifest.identity.teacher["loading"] == {"attn_implementation": "eager"}
    with pytest.raises(ValueError, match=r"loaded with other arguments than requested \(attn_implementation\)"):
        build(data, teacher=teacher)
    build(data, teacher=teacher, model_kwargs={"attn_implementation": "eager", "device_map": "cpu"})


def test_a_quantized_teacher_and_the_full_one_have_two_caches(
    location, documents, tiny_tokenizer, tiny_model, tmp_path
):
    pytest.importorskip("bitsandbytes")
    from qsft.teacher.capture.capture import build_cache

    tiny_model().save_pretrained(tmp_path / "full")
    tiny_tokenizer.save_pretrained(tmp_path / "full")
    data = documents(5)
    quantized = {"quantization_config": BitsAndBytesConfig(load_in_4bit=True)}
    found = []
    for kwargs in ({}, quantized):
        path = location(tmp_path / "full", model_kwargs=kwargs)
        options = {"tokenizer": tiny_tokenizer, "progress": False, "model_kwargs": kwargs, **SETTINGS}
        cache = build_cache(data, tmp_path / "full", path, **options)
        found.append(torch.cat([cache.lookup(**document).label_logp for document in data]).float())
        build_cache(data, tmp_path / "full", path, **options)  # the same again
    assert (found[0] - found[1]).abs().max() > 1e-3
    with pytest.raises(ValueError, match="other arguments than requested"):
        build_cache(data, tmp_path / "full", path, tokenizer=tiny_tokenizer, progress=False, **SETTINGS)


def test_a_float32_base_and_a_bfloat16_teacher_of_one_name_live_side_by_side(
    location, documents, tiny_tokenizer, tiny_model, tmp_path
):
    from qsft.teacher.capture.capture import build_cache

    tiny_model().to(torch.bfloat16).save_pretrained(tmp_path / "model")
    tiny_tokenizer.save_pretrained(tmp_path / "model")
    data = documents(5)
    for order in ("teacher first", "base first"):
        dtypes = [{}, {"dtype": torch.float32}]
        for kwargs in dtypes if order == "teacher first" else reversed(dtypes):
            path = location(tmp_path / "model", model_kwargs=kwargs) / order
            cache = build_cache(
                data,
                tmp_path / "model",
                path,
                tokenizer=tiny_tokenizer,
                progress=False,
                model_kwargs=kwargs,
                **SETTINGS,
            )
            assert cache.manifest.identity.dtype == ("float32" if kwargs else "bfloat16")
    assert location(tmp_path / "model") != location(tmp_path / "model", dtype="float32")
    assert location(tmp_path / "model") == location(tmp_path / "model", dtype="bfloat16")


def test_a_lora_adapter_is_a_teacher_cached_and_live(build, documents, adapter, teacher):
    data = documents(8)
    path = adapter()
    cache = build(data, teacher=path)
    description = cache.manifest.identity.teacher
    assert (description["name"], description["base"]["name"]) == (str(path), str(teacher))
    assert [file["file"] for file in description["files"]] == ["adapter_model.safetensors"]
    assert [file["file"] for file in description["base"]["files"]] == ["model.safetensors"]
    reference = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(teacher), path).eval()
    base = AutoModelForCausalLM.from_pretrained(teacher).eval()
    live = LiveTeacher(TransformersSource(path).load(), k=8)
    for document in data:
        labeled = [t for t, label in enumerate(document["labels"]) if t and label != -100]
        if not labeled:
            continue
        batch = {name: torch.tensor([document[name]]) for name in ("input_ids", "labels")}
        with torch.no_grad():
            expected = reference(batch["input_ids"]).logits[0].log_softmax(-1)[torch.tensor(labeled) - 1]
            without = base(batch["input_ids"]).logits[0].log_softmax(-1)[torch.tensor(labeled) - 1]
        cached = cache.lookup(**document).logps.float()
        torch.testing.assert_close(cached, expected.topk(8).values, atol=4e-3, rtol=1e-3)
        torch.testing.assert_close(live(**batch).logps, expected.topk(8).values, atol=1e-4, rtol=1e-4)
        assert (expected - without).abs().max() > 1e-2
    build(data, teacher=path)  # nothing is computed again
    with pytest.raises(ValueError, match="holds the log-probs of"):
        build(data, teacher=teacher)


def test_adapters_differ_by_weights_scale_and_base(build, documents, adapter, teacher, location, tiny_model, tmp_path):
    data = documents(5)
    first = adapter()
    build(data, teacher=first)
    tiny_model(seed=1).save_pretrained(tmp_path / "other base")
    others = [adapter("seed", seed=1), adapter("alpha", alpha=16), adapter("base", base=tmp_path / "other base")]
    assert len({location(path) for path in (teacher, first, *others)}) == 5
    for path, problem in zip(others, ("other files", "another configuration", "on another base model")):
        if path.name == "base":  # the same adapter files, on another base
            config = json.loads((first / "adapter_config.json").read_text())
            (path / "adapter_model.safetensors").write_bytes((first / "adapter_model.safetensors").read_bytes())
            config["base_model_name_or_path"] = str(tmp_path / "other base")
            (path / "adapter_config.json").write_text(json.dumps(config))
        with pytest.raises(ValueError, match=problem):
            build(data, teacher=path)


def test_an_adapter_without_a_tokenizer_has_its_bases(adapter, tiny_tokenizer):
    tokenizer = TransformersSource(adapter(tokenizer=False)).tokenizer()
    assert tokenizer.get_vocab() == tiny_tokenizer.get_vocab()


def test_a_prompt_learning_adapter_is_rejected(teacher, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(teacher)
    config = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    in_memory = get_peft_model(model, config)
    in_memory.save_pretrained(tmp_path / "prompt")
    for source in (tmp_path / "prompt", in_memory):
        with pytest.raises(ValueError, match=r"PROMPT_TUNING adapter. Prompt learning puts virtual tokens"):
            TransformersSource(source).load()
    with in_memory.disable_adapter():
        TransformersSource(in_memory).load()


def test_an_adapter_in_memory_and_its_files_are_one_teacher(build, documents, adapter, teacher):
    path = adapter()
    build(documents(5), teacher=path)
    in_memory = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(teacher), path)
    build(documents(5, seed=1), teacher=in_memory)
    for config in in_memory.peft_config.values():
        config.lora_alpha = 1
    with pytest.raises(ValueError, match="another configuration"):
        build(documents(5, seed=2), teacher=in_memory)


def test_a_model_in_memory_has_the_name_it_was_loaded_by(teacher, tiny_model):
    assert TransformersSource(AutoModelForCausalLM.from_pretrained(teacher)).name == str(teacher)
    assert TransformersSource(tiny_model()).name == "Qwen2ForCausalLM"


REMOTE_CODE = """
from transformers import Qwen2Config, Qwen2ForCausalLM

class OwnConfig(Qwen2Config):
    model_type = "own_model"

class OwnModel(Qwen2ForCausalLM):
    config_class = OwnConfig
"""


def test_a_teacher_with_code_of_its_own_needs_trust_remote_code(build, documents, teacher):
    config = json.loads((teacher / "config.json").read_text())
    config["model_type"] = "own_model"
    config["auto_map"] = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    (teacher / "config.json").write_text(json.dumps(config))
    (teacher / "own.py").write_text(REMOTE_CODE)
    with pytest.raises(ValueError, match="trust_remote_code"):
        build(documents(5), teacher=teacher)
    cache = build(documents(5), teacher=teacher, model_kwargs={"trust_remote_code": True})
    assert cache.manifest.identity.teacher["loading"] == {}
    live = TransformersSource(teacher, model_kwargs={"trust_remote_code": True}).load()
    assert type(live).__name__ == "OwnModel"


@pytest.mark.parametrize("name", ["/nowhere/cache", "./caches/deleted", Path("/nowhere/at/all")])
def test_a_path_that_does_not_exist_is_neither_a_model_nor_a_cache(build, documents, name):
    with pytest.raises(FileNotFoundError, match=r"there is no (model )?directory .*(nowhere|deleted)"):
        build(documents(3), teacher=name)


def test_a_hub_id_that_does_not_exist_is_named(build, documents):
    with pytest.raises(FileNotFoundError, match=r"there is no model 'org/none'.*the Hub did not give one"):
        build(documents(3), teacher="org/none")


def test_what_is_not_known_of_one_teacher_is_no_difference():
    known = {"name": "a", "weights": "w", "loading": {"attn_implementation": "eager"}, "config": "c"}
    assert teacher_difference(known, known | {"loading": None}) is None
    assert teacher_difference(known, known | {"loading": {}}) is not None


def test_a_cache_says_what_its_teacher_was_loaded_with(build, documents, teacher, adapter):
    from qsft.commands.cache import describe_cache

    cache = build(documents(3), teacher=adapter(), model_kwargs={"attn_implementation": "eager"})
    described = describe_cache(TeacherCache(cache.path).path)
    assert f"adapter of                {teacher}" in described
    assert "attn_implementation=eager" in described
