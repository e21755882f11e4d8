"""TeacherCollator attaches the right log-probs in the right places, also in another process."""

import pickle

import pytest
import torch
from datasets import Dataset, IterableDataset
from tiny import make_model
from torch.utils.data import DataLoader
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from qsft.losses.head import from_bits, to_bits
from qsft.teacher.capture.capture import build_cache
from qsft.teacher.live import LiveTeacher
from qsft.train.collator import TeacherCollator
from qsft.train.columns import check_columns_exist


@pytest.fixture(scope="module")
def rows(data):
    return list(data.tokens(12))


@pytest.fixture(scope="module")
def cache(rows, tiny_tokenizer, tmp_path_factory):
    path = tmp_path_factory.mktemp("collator") / "cache"
    teacher = make_model(seed=5)
    return build_cache(Dataset.from_list(rows), teacher, path, tokenizer=tiny_tokenizer, top_k=8, progress=False)


@pytest.mark.parametrize("padding_free", [False, True])
def test_log_probs_are_those_of_the_live_teacher(rows, cache, tiny_model, padding_free):
    collator = TeacherCollator(DataCollatorForLanguageModeling(0, padding_free=padding_free), cache)
    batch = collator(rows[3:9])
    inputs = {name: batch.get(name) for name in ("input_ids", "labels", "attention_mask", "position_ids")}
    live = LiveTeacher(tiny_model(seed=5), k=8)(**inputs)
    keep = batch["labels"][:, 1:] != -100
    torch.testing.assert_close(from_bits(batch["teacher_logps"])[:, 1:][keep].float(), live.logps, atol=5e-3, rtol=0)
    torch.testing.assert_close(
        from_bits(batch["teacher_label_logp"])[:, 1:][keep].float(), live.label_logp, atol=5e-3, rtol=0
    )
    best = batch["teacher_ids"][:, 1:][keep][:, 0]
    assert (best == live.ids[:, 0]).float().mean() > 0.98  # fp16 may tie two tokens
    assert (from_bits(batch["teacher_logps"])[:, 1:][~keep] == float("-inf")).all()


def test_all_inputs_are_integers(rows, cache):
    batch = TeacherCollator(DataCollatorForLanguageModeling(0), cache)(rows[:3])
    assert batch["teacher_ids"].dtype == torch.int32
    # Neither NCCL nor gloo sends int16, which accelerate's dispatcher would have to.
    assert batch["teacher_logps"].dtype == batch["teacher_label_logp"].dtype == torch.int8
    assert batch["teacher_ids"].shape == (*batch["labels"].shape, 8)
    assert not any(value.is_floating_point() for value in batch.values() if torch.is_tensor(value))


def test_a_missing_document_is_named(rows, cache):
    stranger = {"input_ids": [40, 41, 42], "labels": [40, 41, 42]}
    base = DataCollatorForLanguageModeling(0)
    with pytest.raises(ValueError, match=r"does not have a document.*\[40, 41, 42\].*max_length.*qsft cache build"):
        TeacherCollator(base, cache)([rows[0], stranger])
    batch = TeacherCollator(base, cache, missing="student")([rows[0], stranger])
    assert (from_bits(batch["teacher_logps"])[1] == float("-inf")).all()
    assert (from_bits(batch["teacher_logps"])[0] > float("-inf")).any()


def test_documents_without_labels_are_not_looked_up(rows, cache):
    silent = {"input_ids": [40, 41, 42], "labels": [40, -100, -100]}
    TeacherCollator(DataCollatorForLanguageModeling(0), cache)([rows[0], silent])


def test_a_cache_is_pickled_as_its_path(rows, cache):
    collator = TeacherCollator(DataCollatorForLanguageModeling(0), cache)
    content = pickle.dumps(collator)
    assert len(content) < 2000
    again = pickle.loads(content)(rows[:4])
    assert again["teacher_logps"].equal(collator(rows[:4])["teacher_logps"])


@pytest.mark.slow
def test_a_spawned_worker_reads_the_cache(rows, cache):
    collator = TeacherCollator(DataCollatorForLanguageModeling(0), cache)
    loader = DataLoader(rows, batch_size=6, collate_fn=collator, num_workers=1, multiprocessing_context="spawn")
    for got, start in zip(loader, (0, 6)):
        expected = collator(rows[start : start + 6])
        assert all(got[name].equal(expected[name]) for name in expected)


def test_streamed_examples_get_their_log_probs(rows, cache):
    stream = IterableDataset.from_generator(lambda: iter(rows))
    collator = TeacherCollator(DataCollatorForLanguageModeling(0), cache)
    batch = next(iter(DataLoader(stream, batch_size=4, collate_fn=collator)))
    assert batch["teacher_ids"].equal(collator(rows[:4])["teacher_ids"])


@pytest.mark.parametrize("padding_free", [False, True])
def test_columns_are_aligned_with_the_tokens(padding_free):
    rows = [
        {"input_ids": [5, 6, 7], "labels": [5, 6, 7], "critical": [0, 1, 0], "w": 2.0},
        {"input_ids": [8, 9], "labels": [8, 9], "critical": [1, 1], "w": 0.5},
    ]
    base = DataCollatorForLanguageModeling(0, padding_free=padding_free, pad_to_multiple_of=4)
    batch = TeacherCollator(base, None, columns={"critical": "critical", "weight": "w"}, attach_document=True)(rows)
    critical, weight = batch["critical"], from_bits(batch["weight"])
    expected = [[0, 1, 0, 1, 1, 0, 0, 0]] if padding_free else [[0, 1, 0, 0], [1, 1, 0, 0]]
    assert critical.tolist() == expected
    assert weight[critical > 0].tolist() == [2.0, 0.5, 0.5]
    assert batch["document"].shape == batch["input_ids"].shape
    assert "teacher_ids" not in batch


def test_a_missing_column_is_named():
    rows = Dataset.from_list([{"input_ids": [5, 6]}])
    with pytest.raises(ValueError, match=r"reads the column 'critical'.*input_ids.*critical_column"):
        check_columns_exist(rows, {"critical": "critical"})


def test_attributes_are_those_of_the_wrapped_collator():
    base = DataCollatorForLanguageModeling(0)
    collator = TeacherCollator(base, None)
    assert collator.pad_token_id == 0
    collator.pad_to_multiple_of = 8
    assert base.pad_to_multiple_of == 8
    assert collator([{"input_ids": [5, 6], "labels": [5, 6]}])["input_ids"].shape == (1, 8)
    assert pickle.loads(pickle.dumps(collator)).pad_to_multiple_of == 8
    with pytest.raises(AttributeError):
        _ = collator.no_such_attribute


@pytest.mark.parametrize("name", ["input_ids", "labels"])
def test_ids_outside_the_embedding_are_named(name):
    collator = TeacherCollator(DataCollatorForLanguageModeling(0), None, num_embeddings=8)
    row = {"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}
    collator([row])
    with pytest.raises(ValueError, match=f"{name} has the id 8, but the student's embedding has 8 entries"):
        collator([{**row, name: [5, 8, 7]}])
    with pytest.raises(ValueError, match=f"{name} has the id -1"):
        collator([{**row, name: [5, -1, 7]}])


def test_bits_round_trip():
    values = torch.tensor([0.1, -3.0, float("-inf")])
    assert from_bits(to_bits(values)).equal(values)


def test_a_teacher_collator_may_be_passed_to_the_trainer(trainer, data, tiny_model, tmp_path):
    settings = {"target": "kd", "teacher_cache": str(tmp_path / "cache")}
    first = trainer(data.completion(), teacher=tiny_model(seed=5), **settings)
    own = TeacherCollator(first.data_collator.base_collator, first.cache)
    made = trainer(data.completion(), data_collator=own, **settings)
    assert made.data_collator.base_collator is first.data_collator.base_collator
    assert made.train().training_loss == first.train().training_loss


def test_the_collator_of_another_trainer_attaches_what_the_target_reads(trainer, data):
    other = trainer(data.completion(), target="dft")
    rows = data.tokens()
    made = trainer(rows.add_column("critical", [1] * len(rows)), target="cft")
    made.data_collator = other.data_collator
    made.train()
    assert made.data_collator.columns == {"critical": "critical"}
