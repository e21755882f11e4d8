"""Names of transformers, TRL, accelerate and PEFT that are not public and that train/ relies on.

Each is listed here with what it must be. When a new version moves one, this file fails and says which.
"""

import inspect
import warnings

import pytest
import torch
import trl.trainer.sft_trainer as sft
from accelerate.utils import convert_outputs_to_fp32
from peft import PromptTuningConfig, get_peft_model
from transformers import Trainer
from transformers.integrations import deepspeed
from transformers.trainer_utils import rotate_checkpoints
from trl import SFTConfig, SFTTrainer

from qsft.train.precision import PACKS_4BIT_ON_CPU
from qsft.train.trainer import TargetSFTTrainer

# method → the parameters that the override passes on
OVERRIDDEN = {
    "compute_loss": ["model", "inputs", "return_outputs", "num_items_in_batch"],
    "get_batch_samples": ["epoch_iterator", "num_batches", "device"],
    "get_eval_dataloader": ["eval_dataset"],
    "get_test_dataloader": ["test_dataset"],
    "log": ["logs", "start_time"],
    "train": ["resume_from_checkpoint", "trial", "ignore_keys_for_eval"],
    "_save_checkpoint": ["model", "trial"],
    "_prepare_dataset": ["dataset", "processing_class", "args", "packing", "formatting_func", "dataset_name"],
    "_set_signature_columns_if_needed": [],
    "_reject_skip_prepare_without_labels": ["datasets", "data_collator"],
}


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_an_overridden_method_exists_with_these_parameters(name):
    parameters = list(inspect.signature(getattr(SFTTrainer, name)).parameters)[1:]
    assert parameters == OVERRIDDEN[name]
    ours = [name for name in inspect.signature(getattr(TargetSFTTrainer, name)).parameters if name != "self"]
    assert ours == OVERRIDDEN[name]


def test_the_list_of_overrides_is_complete():
    inherited = set(dir(SFTTrainer))
    own = {name for name, value in vars(TargetSFTTrainer).items() if inspect.isfunction(value) and name in inherited}
    assert own - {"__init__", "create_model_card"} == set(OVERRIDDEN)
    assert all(f"`{name}`" in TargetSFTTrainer.__doc__ for name in own - {"__init__"})


@pytest.mark.parametrize(
    "name", ["_get_output_dir", "_push_from_checkpoint", "_prepare_inputs", "get_total_train_batch_size", "get_tp_size"]
)
def test_a_method_that_is_called_exists(name):
    assert callable(getattr(SFTTrainer, name))


@pytest.mark.parametrize("name", ["_tag_names", "_name", "_paper"])
def test_the_attributes_of_the_model_card_are_read_by_trl(name):
    """TRL's create_model_card reads them from the class."""
    import trl.trainer.base_trainer as base

    assert f"self.{name}" in inspect.getsource(base)


INSTANCE_ATTRIBUTES = (
    "_loss_shifts_labels", "model_accepts_loss_kwargs", "_signature_columns", "_tokenizer", "_skip_prepare_dataset",
    "_formatting_func", "_total_train_tokens", "_tp_size", "aux_loss_enabled", "router_aux_loss_coef",
    "is_fsdp_enabled", "label_names",
)  # fmt: skip


def test_attributes_of_a_trainer_exist(config, tiny_model, tiny_tokenizer, data):
    made = SFTTrainer(tiny_model(), config(), train_dataset=data.text(), processing_class=tiny_tokenizer)
    missing = [name for name in INSTANCE_ATTRIBUTES if not hasattr(made, name)]
    assert not missing


def test_trainer_reads_what_is_set_on_it():
    """Attributes that TargetSFTTrainer sets would do nothing if Trainer no longer read them."""
    source = inspect.getsource(Trainer)
    for name in ("_loss_shifts_labels", "model_accepts_loss_kwargs", "loss_is_scaled_for_ga"):
        assert f"self.{name}" in source


def test_trainer_deletes_old_checkpoints_inside_save_checkpoint_by_modification_time():
    """The reason for overriding it: when this changes, the override may go."""
    source = inspect.getsource(Trainer._save_checkpoint)
    assert "rotate_checkpoints" in source
    assert "use_mtime=True" in source
    assert "save_total_limit" in inspect.signature(rotate_checkpoints).parameters


def test_an_upload_skips_names_that_begin_with_an_underscore():
    for method in (Trainer._push_from_checkpoint, Trainer.push_to_hub):
        assert '"_*"' in inspect.getsource(method)


def test_trls_collator_is_checked_by_its_type():
    assert "DataCollatorForLanguageModeling" in inspect.getsource(SFTTrainer._reject_skip_prepare_without_labels)
    assert inspect.isclass(sft.DataCollatorForLanguageModeling)


def test_accelerates_mixed_precision_keeps_the_original_forward():
    """head_check recognizes autocast by it, and a teacher's own logits are computed without it."""
    from accelerate import Accelerator

    assert "_original_forward" in inspect.getsource(Accelerator.prepare_model)
    assert callable(convert_outputs_to_fp32)


def test_bitsandbytes_packs_4_bit_weights_where_this_attribute_says_so():
    """Training sets it to False, because packed weights cannot be trained on."""
    bitsandbytes = pytest.importorskip("bitsandbytes")
    layer = bitsandbytes.nn.Linear4bit(64, 64)
    assert hasattr(layer, PACKS_4BIT_ON_CPU)
    assert f"self.{PACKS_4BIT_ON_CPU}" in inspect.getsource(bitsandbytes.nn.Linear4bit.forward)


def test_peft_marks_a_model_whose_adapters_are_disabled(tiny_model):
    """A prompt-tuned student that is its own base is recognized by it."""
    student = get_peft_model(tiny_model(), PromptTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"))
    assert student._adapters_disabled is False
    with student.disable_adapter():
        assert student._adapters_disabled is True


def test_attributes_of_data_sets_models_and_configs_exist(tiny_model, data):
    rows = data.tokens(4)
    assert rows._indices is None
    assert rows.shuffle(seed=0)._indices.num_rows == 4
    assert rows._fingerprint != rows.shuffle(seed=0)._fingerprint
    assert tiny_model().config._name_or_path == ""
    assert list(tiny_model()._no_split_modules) == ["Qwen2DecoderLayer"]
    assert "model_init_kwargs" in SFTConfig._VALID_DICT_FIELDS


def test_deepspeed_zero3_is_detected_by_this_function():
    assert deepspeed.is_deepspeed_zero3_enabled() is False


def test_an_assertion_on_the_device_exists():
    torch._assert_async(torch.tensor(True), "label positions are checked by it")


def test_fields_of_the_config_that_are_read_exist():
    names = {"loss_type", "label_smoothing_factor", "packing", "eval_packing", "packing_strategy", "shuffle_dataset",
             "dataset_num_proc", "truncation_mode", "max_length", "model_init_kwargs", "dataset_kwargs",
             "dataset_text_field", "trust_remote_code"}  # fmt: skip
    assert names <= set(SFTConfig.__dataclass_fields__)


@pytest.mark.parametrize("gradient_checkpointing", [True, False])
def test_no_deprecation_is_warned_of_in_a_run(config, tiny_model, tiny_tokenizer, data, gradient_checkpointing):
    """TRL's default for gradient_checkpointing has the name that transformers 5.23 deprecates."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        args = config(max_steps=1, gradient_checkpointing=gradient_checkpointing)
        TargetSFTTrainer(tiny_model(), args, train_dataset=data.text(), processing_class=tiny_tokenizer).train()
    assert [str(one.message) for one in caught if issubclass(one.category, FutureWarning)] == []
