"""What cannot be trained correctly raises an error that says what to do."""

from types import SimpleNamespace

import pytest
from datasets import Dataset
from transformers import AutoConfig

from qsft import TargetSFTConfig
from qsft.losses.head import base_causal_lm
from qsft.train.validate import check_adapter, check_parallelism


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loss_type": "dft", "target": "sft"}, "target='sft' and loss_type='dft' name two losses"),
        ({"label_smoothing_factor": 0.1}, "target='label_smoothing' with target_kwargs={'lam': 0.1}"),
        ({"compute_loss_func": lambda *a, **k: 0}, "target=LossTarget"),
        ({"target": "target_sft"}, 'TargetSFTTrainer(..., teacher="'),
        ({"target": "kd"}, "the target kd (γ = 0, π̃ = π_T, scale = 1) needs a teacher"),
        ({"target": "taget_sft"}, "Did you mean 'target_sft'"),
        ({"target": "sft", "target_kwargs": {"eta": 1}}, "no hyper-parameter 'eta'"),
        (
            {"target": "target_sft", "target_object": "kd", "target_kwargs": {"tail": "ghost"}},
            "target='kd' was passed to the trainer, but",
        ),
        ({"target": "iw_sft", "teacher": "base", "teacher_missing": "student"}, "leaves iw_sft without weights"),
        ({"target_kwargs": "{eta: 1}"}, "target_kwargs='{eta: 1}' is not a JSON object"),
        ({"target_kwargs": "[1]"}, "target_kwargs='[1]' is not a JSON object"),
        ({"loss_normalization": "mean"}, "loss_normalization = 'mean' is not one of 'tokens', 'micro_batch_mean'."),
        ({"psft_block_steps": 0}, "must be at least 1"),
        (
            {"resume_allow_changed": ["learnig_rate"]},
            "names 'learnig_rate', which no run records. Did you mean 'learni",
        ),
        ({"teacher_top_p": 2.0}, "teacher_top_p must be above 0 and at most 1, got 2.0"),
        ({"target": "target_sft", "teacher_cache": "nowhere"}, "there is no teacher cache nowhere"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_what_cannot_be_trained_raises_an_error(trainer, data, settings, words):
    with pytest.raises(ValueError) as error:
        trainer(data.completion(), **settings)
    assert words in str(error.value)


@pytest.mark.parametrize("name", ["./nomodel", "../nomodel", "/no/model", "~/nomodel", "no/such/model"])
def test_a_model_directory_that_does_not_exist_is_named_before_anything_is_loaded(name, trainer, data, monkeypatch):
    monkeypatch.setattr(AutoConfig, "from_pretrained", lambda *_, **__: pytest.fail("something was loaded"))
    with pytest.raises(FileNotFoundError, match=f"there is no model directory {name}. Check the path") as error:
        trainer(data.completion(), model=name)
    assert ("only a shell expands ~" in str(error.value)) == name.startswith("~")


def test_vision_data(trainer):
    rows = Dataset.from_list([{"messages": [{"role": "user", "content": "w1"}], "images": []}])
    with pytest.raises(ValueError, match="has images"):
        trainer(rows)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_data_set_without_examples_raises_an_error(trainer, data, streamed):
    rows = data.completion()
    empty = rows.to_iterable_dataset().take(0) if streamed else rows.select([])
    with pytest.raises(ValueError, match="train data set is empty"):
        trainer(empty)


@pytest.mark.parametrize(
    ("parallelism", "n_gpu", "words"),
    [
        ({"cp_enabled": True, "sp_enabled": False}, 1, "context parallelism"),
        ({"cp_enabled": False, "sp_enabled": True}, 1, "Ulysses"),
        (None, 2, "nn.DataParallel"),
    ],
)
def test_parallelism(parallelism, n_gpu, words):
    parallelism = None if parallelism is None else SimpleNamespace(**parallelism)
    with pytest.raises(ValueError, match=words):
        check_parallelism(parallelism, SimpleNamespace(n_gpu=n_gpu))
    check_parallelism(SimpleNamespace(cp_enabled=False, sp_enabled=False), SimpleNamespace(n_gpu=1))


def test_a_trained_copy_of_the_head_raises_an_error_under_fsdp(tiny_model):
    from peft import LoraConfig, get_peft_model

    lora = {"r": 2, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
    copied = get_peft_model(tiny_model(), LoraConfig(**lora, modules_to_save=["lm_head"]))
    check_adapter(copied, fsdp=False)
    check_adapter(get_peft_model(tiny_model(), LoraConfig(**lora)), fsdp=True)
    with pytest.raises(ValueError, match="wrong gradients under FSDP"):
        check_adapter(copied, fsdp=True)


# ---- the head's kernel ----


def test_a_kernel_that_cannot_run_here_raises_an_error_before_any_work(trainer, data, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match='head_kernel="triton" needs triton and a CUDA or ROCm device'):
        trainer(data.completion(), head_kernel="triton", model="there is no such model")
    with pytest.raises(ValueError, match="head_kernel = 'cuda' is not one of 'auto', 'torch', 'triton'"):
        trainer(data.completion(), head_kernel="cuda")


def test_the_head_kernel_of_the_config_is_the_one_that_runs(trainer, data, logged, monkeypatch):
    """On a CPU "auto" is torch; the tests' interpreter runs what "triton" names."""
    kernels = pytest.importorskip("qsft.losses.kernels")
    launched = []
    losses = {}
    write = kernels.write_gradient
    monkeypatch.setattr(kernels, "write_gradient", lambda *given: launched.append(1) or write(*given))
    for kernel in ("auto", "torch", "triton"):
        one_row = {"per_device_train_batch_size": 1, "max_steps": 1}  # an interpreter of kernels is slow
        made = trainer(data.tokens(8), head_kernel=kernel, target="dft", **one_row)
        assert not launched
        made.train()
        losses[kernel] = logged(made)
    assert launched
    assert losses["auto"] == losses["torch"] == pytest.approx(losses["triton"], rel=1e-6)


@pytest.mark.parametrize("size", [0, -1, float("inf"), float("nan")])
def test_a_tile_without_a_positive_size_raises_value_error(size, tmp_path):
    with pytest.raises(ValueError, match="head_tile_mib must be a positive number of MiB"):
        TargetSFTConfig(str(tmp_path), head_tile_mib=size, use_cpu=True, bf16=False)


def test_the_tile_of_the_config_reaches_the_head_and_changes_no_loss(trainer, data, logged):
    losses = []
    for size in (None, 0.01):
        made = trainer(data.tokens(8), head_tile_mib=size, target="dft", max_steps=2)
        assert base_causal_lm(made.model).target_head_options.tile_mib == size
        made.train()
        assert "head_tile_mib" not in made.run_record.trajectory
        losses.append(logged(made))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
