"""What cannot be right is refused, and the error names what to do."""

from types import SimpleNamespace

import pytest
from datasets import Dataset

from qsft.train.safeguards import refuse_parallelism


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loss_type": "dft", "target": "sft"}, "set target='dft'"),
        ({"label_smoothing_factor": 0.1}, "target='label_smoothing' with target_kwargs={'lam': 0.1}"),
        ({"compute_loss_func": lambda *a, **k: 0}, "target=LossTarget"),
        ({"target": "target"}, 'TargetSFTTrainer(..., teacher="'),
        ({"target": "taget"}, "Did you mean 'target'"),
        ({"target": "sft", "target_kwargs": {"eta": 1}}, "no hyper-parameter 'eta'"),
        ({"target": "iw_sft", "teacher": "base", "teacher_missing": "self"}, "no weight"),
        ({"loss_normalization": "mean"}, "Choose one of tokens, micro_batch_mean"),
        ({"psft_block_steps": 0}, "must be at least 1"),
        ({"target": "target", "teacher_cache": "nowhere"}, "is not a teacher cache"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_refused(trainer, data, settings, words):
    with pytest.raises(ValueError) as error:
        trainer(data.completion(), **settings)
    assert words in str(error.value)


def test_vision_data(trainer):
    rows = Dataset.from_list([{"messages": [{"role": "user", "content": "w1"}], "images": []}])
    with pytest.raises(ValueError, match="holds images"):
        trainer(rows)


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
        refuse_parallelism(parallelism, SimpleNamespace(n_gpu=n_gpu))
    refuse_parallelism(SimpleNamespace(cp_enabled=False, sp_enabled=False), SimpleNamespace(n_gpu=1))


def test_a_trained_copy_of_the_head_is_refused_under_fsdp(tiny_model):
    from peft import LoraConfig, get_peft_model

    from qsft.train.safeguards import refuse_sharded_head_copy

    lora = {"r": 2, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
    copied = get_peft_model(tiny_model(), LoraConfig(**lora, modules_to_save=["lm_head"]))
    refuse_sharded_head_copy(copied, fsdp=False)
    refuse_sharded_head_copy(get_peft_model(tiny_model(), LoraConfig(**lora)), fsdp=True)
    with pytest.raises(ValueError, match="wrong gradients under FSDP"):
        refuse_sharded_head_copy(copied, fsdp=True)
