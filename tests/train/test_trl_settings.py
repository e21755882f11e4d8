"""Settings, adapters and uses that TRL's own tests exercise: with target "sft", the losses equal SFTTrainer's."""

from copy import deepcopy

import pytest
import torch
from peft import LNTuningConfig, LoraConfig, TrainableTokensConfig, VeraConfig
from transformers import DataCollatorWithFlattening, TrainerCallback
from trl import SFTConfig, SFTTrainer

from qsft.train.config import TargetSFTConfig
from qsft.train.trainer import TargetSFTTrainer


@pytest.fixture
def both(config, tiny_model, tiny_tokenizer):
    """Factory: SFTTrainer and TargetSFTTrainer with target sft, for the same arguments; `model` makes a model."""

    def make(data, *, model=tiny_model, peft_config=None, eval_dataset=None, trainer_settings=None, **overrides):
        made = []
        for kind in (SFTTrainer, TargetSFTTrainer):
            args = config(**{"max_steps": 2, **overrides})
            given = {"eval_dataset": eval_dataset, "peft_config": deepcopy(peft_config), **(trainer_settings or {})}
            made.append(kind(model(), args, train_dataset=data, processing_class=deepcopy(tiny_tokenizer), **given))
        return made

    return make


def assert_same_losses(theirs, ours, logged):
    for made in (theirs, ours):
        torch.manual_seed(0)
        made.train()
    for key in ("loss", "eval_loss"):
        assert logged(ours, key) == pytest.approx(logged(theirs, key), abs=2e-6), key
    assert logged(ours, "grad_norm") == pytest.approx(logged(theirs, "grad_norm"), rel=1e-4)


SETTINGS = {
    "reentrant checkpointing": ("text", {
        "gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}}),
    "selective checkpointing": ("text", {
        "gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"selective": True}}),
    "padding-free": ("completion", {"padding_free": True, "max_length": None, "pad_to_multiple_of": 32}),
    "packed": ("text", {"packing": True, "max_length": 48, "pad_to_multiple_of": 32}),
    "split and packed": ("text", {"packing": True, "packing_strategy": "bfd_split", "max_length": 12}),
    "wrapped": ("text", {"packing": True, "packing_strategy": "wrapped", "max_length": 24}),
    "wrapped without padding": ("text", {
        "packing": True, "packing_strategy": "wrapped", "max_length": 24, "padding_free": True}),
    "assistants only": ("chat", {"assistant_only_loss": True}),
    "noise in the embeddings": ("text", {"neftune_noise_alpha": 5}),
    "grouped by length": ("text", {"train_sampling_strategy": "group_by_length"}),
    "another eos token": ("text", {"eos_token": "w9"}),
    "averages per process": ("text", {"average_tokens_across_devices": False, "gradient_accumulation_steps": 2}),
    "evaluated at the start": ("text", {"eval_on_start": True, "eval_strategy": "steps", "eval_steps": 1}),
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting(both, trainer, data, logged, tiny_model, tmp_path, name):
    form, settings = SETTINGS[name]
    rows = getattr(data, form)()
    held_out = getattr(data, form)(6) if "eval_strategy" in settings else None
    assert_same_losses(*both(rows, eval_dataset=held_out, **settings), logged)
    distilled = trainer(
        rows, eval_dataset=held_out, target="target_sft", teacher=tiny_model(seed=5), teacher_top_k=8,
        teacher_cache=str(tmp_path / "cache"), **{"max_steps": 2, **settings},
    )  # fmt: skip
    distilled.train()
    assert logged(distilled, "fallback_tokens") == [0, 0]


ON_Q = {"r": 2, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
BOTH_ENDS = ["embed_tokens", "lm_head"]
ADAPTERS = {
    "head and embedding saved": (LoraConfig(**ON_Q, modules_to_save=BOTH_ENDS), {}),
    "tied head and embedding saved": (LoraConfig(**ON_Q, modules_to_save=BOTH_ENDS), {"tie_word_embeddings": True}),
    "tying ensured": (
        LoraConfig(**ON_Q, modules_to_save=["embed_tokens"], ensure_weight_tying=True), {"tie_word_embeddings": True},
    ),
    "trained tokens": (LoraConfig(**ON_Q, trainable_token_indices=[30, 31]), {}),
    "trained tokens alone": (TrainableTokensConfig(token_indices=[30, 31], task_type="CAUSAL_LM"), {}),
    "vera": (VeraConfig(**ON_Q), {}),
    "norms": (LNTuningConfig(task_type="CAUSAL_LM"), {}),
    "embedding": (LoraConfig(**{**ON_Q, "target_modules": ["q_proj", "embed_tokens"]}), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter(both, data, logged, tiny_model, name):
    adapter, shape = ADAPTERS[name]
    made = both(data.completion(), model=lambda: tiny_model(**shape), peft_config=adapter, learning_rate=1e-2)
    assert_same_losses(*made, logged)


def test_a_collator_that_flattens(both, data, logged):
    settings = {"dataset_kwargs": {"skip_prepare_dataset": True}}
    collator = {"data_collator": DataCollatorWithFlattening()}
    assert_same_losses(*both(data.tokens(), trainer_settings=collator, **settings), logged)


# ---- evaluation ----


def test_metrics_are_computed_in_batches_and_from_losses_and_inputs(both, data):
    def evaluate(**settings):
        def metrics(prediction, compute_result=True):
            names = [name for name in ("losses", "inputs") if getattr(prediction, name) is not None]
            return {name: float(torch.as_tensor(getattr(prediction, name)).float().mean()) for name in names} | {
                "width": prediction.predictions.shape[-1]
            }

        given = {"trainer_settings": {"compute_metrics": metrics}, "eval_dataset": data.completion(8), **settings}
        theirs, ours = (made.evaluate() for made in both(data.completion(), **given))
        names = {name for name in theirs if name.removeprefix("eval_") in ("loss", "losses", "inputs", "width")}
        for name in names:
            assert ours[name] == pytest.approx(theirs[name], abs=1e-6), name
        return names

    everything = {"eval_loss", "eval_losses", "eval_inputs", "eval_width"}
    assert evaluate(include_for_metrics=["inputs", "loss"]) == everything
    assert evaluate(batch_eval_metrics=True) == {"eval_loss", "eval_width"}
    assert evaluate(eval_accumulation_steps=1) == {"eval_loss", "eval_width"}


def test_a_callback_evaluates_while_training(both, data, logged):
    class Evaluates(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            made.evaluate()

    trainers = both(data.completion(), eval_dataset=data.completion(4))
    for made in trainers:
        made.add_callback(Evaluates())
        made.train()
    theirs, ours = (logged(made, "eval_loss") + logged(made, "train_loss") for made in trainers)
    assert len(ours) == 3
    assert ours == pytest.approx(theirs, abs=2e-6)


# ---- the model and the checkpoints afterwards ----


def test_the_model_generates_and_is_trained_again_by_either_trainer(both, data, config, logged, tiny_tokenizer):
    ids = torch.arange(30, 50)[None]
    words, losses = [], []
    for made in both(data.completion()):
        made.train()
        again = SFTTrainer(made.model, config(), train_dataset=data.completion(), processing_class=tiny_tokenizer)
        again.train()
        once_more = type(made)(made.model, config(), train_dataset=data.text(), processing_class=tiny_tokenizer)
        once_more.train()
        losses.append(logged(made) + logged(again) + logged(once_more))
        words.append(made.model.generate(ids, max_new_tokens=4, do_sample=False).tolist())
    assert words[0] == words[1]
    assert losses[0] == pytest.approx(losses[1], abs=5e-6)


def test_a_subclass_adds_a_term_and_reads_the_outputs(config, data, logged, tiny_model, tiny_tokenizer):
    def train(kind):
        class Penalized(kind):
            def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
                loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
                loss = loss + outputs.logits.detach().mean() + 1e-4 * model.lm_head.weight.square().sum()
                return (loss, outputs) if return_outputs else loss

        made = Penalized(tiny_model(), config(), train_dataset=data.completion(), processing_class=tiny_tokenizer)
        made.train()
        return logged(made)

    assert train(TargetSFTTrainer) == pytest.approx(train(SFTTrainer), abs=2e-6)


@pytest.mark.parametrize("given", [{}, {"gradient_checkpointing": False}, {"gradient_checkpointing": True}])
def test_a_config_survives_a_copy(given, tmp_path):
    values = []
    for kind in (SFTConfig, TargetSFTConfig):
        args = kind(
            str(tmp_path), use_cpu=True, bf16=False, gradient_checkpointing_kwargs={"use_reentrant": False}, **given
        )
        again = kind(**{name: value for name, value in args.to_dict().items() if kind.__dataclass_fields__[name].init})
        values += [
            (made.gradient_checkpointing, made.gradient_checkpointing_kwargs) for made in (args, again, deepcopy(args))
        ]
    assert values == [(given.get("gradient_checkpointing", True), {"use_reentrant": False})] * 6


def test_labels_are_counted_as_the_head_shifts_them_for_every_model(trainer, data, logged, tiny_model):
    """Trainer counts the first label of a document too for a model whose own loss it does not know to shift."""
    losses = []
    for loss_type in ("ForCausalLM", "ForMaskedLM"):
        student = tiny_model()
        student.loss_type = loss_type
        made = trainer(data.text(), model=student, max_steps=2)
        made.train()
        losses.append(logged(made))
    assert losses[0] == losses[1]
