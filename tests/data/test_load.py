"""Documents from rows: what is a label, which rows are used, and what is written down about it."""

import json

import datasets
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qsft.data.load import load_training_data
from qsft.data.rows import load_documents
from qsft.data.sources import DataSettings
from qsft.targets.view import IGNORED


def load(tokenizer, path, name, **options):
    keys = ("max_length", "multiple_of")
    arguments = {key: options.pop(key) for key in keys if key in options}
    return load_training_data(DataSettings(dataset_name=name, data_dir=path, **options), tokenizer, **arguments)


@pytest.mark.parametrize("name", ["numina", "openr1", "m23k"])
def test_labels_are_the_response_and_the_end_token(name, rows_file, tiny_tokenizer):
    data = load(tiny_tokenizer, rows_file(name), name)
    assert data.dataset.column_names == ["input_ids", "labels"]
    row_id = data.manifest["row_ids"][3]
    row = data.dataset[3]
    prompt = f"<|user|> w{row_id} + w{row_id + 1} = ? <|assistant|>"
    response = " ".join(f"w{j}" for j in range(row_id % 5 + 1))
    labeled = [token for token, label in zip(row["input_ids"], row["labels"]) if label != IGNORED]
    assert tiny_tokenizer.decode(row["input_ids"]) == f"{prompt} {response} <|eos|>"
    assert tiny_tokenizer.decode(labeled) == f"{response} <|eos|>"
    assert all(label in (IGNORED, token) for token, label in zip(row["input_ids"], row["labels"]))


def test_prompt_and_response_are_joined_as_tokenized_apart(rows_file, tiny_tokenizer):
    data = load(tiny_tokenizer, rows_file("numina"), "numina")
    alone = tiny_tokenizer("w0 w1 w2", add_special_tokens=False)["input_ids"]
    assert data.dataset[2]["input_ids"][-4:] == [*alone, tiny_tokenizer.eos_token_id]


def test_boxed_prompt_has_the_system_turn_and_the_instruction(rows_file, tiny_tokenizer):
    manifest = load(tiny_tokenizer, rows_file("m23k"), "m23k", prompt="boxed").manifest
    assert manifest["prompt_example"] == (
        "<|system|> You are a helpful assistant. <|user|> {question}\n"
        "Please reason step by step, and put your final answer within \\boxed{}. <|assistant|> "
    )


def test_m23k_response_is_a_setting(rows_file, tiny_tokenizer):
    path = rows_file("m23k")
    short, long = (load(tiny_tokenizer, path, "m23k", response=r).dataset[0] for r in ("distilled", "reasoning"))
    assert tiny_tokenizer.decode(short["input_ids"]).endswith("<|assistant|> w0 <|eos|>")
    assert tiny_tokenizer.decode(long["input_ids"]).endswith("<|assistant|> w7 w8 w0 <|eos|>")
    with pytest.raises(ValueError, match="response = 'thinking' is not one of 'distilled', 'reasoning'"):
        load(tiny_tokenizer, path, "m23k", response="thinking")


def test_openr1_null_targets_are_dropped_and_counted(rows_file, tiny_tokenizer):
    data = load(tiny_tokenizer, rows_file("openr1", 20), "openr1")
    assert data.manifest["rows"]["without a demonstration"] == 3  # rows 0, 7, 14
    assert not {0, 7, 14} & set(data.manifest["row_ids"])


def test_sample_is_the_first_of_the_seeded_shuffle_of_what_fits(rows_file, tiny_tokenizer):
    path = rows_file("numina", 40)
    everything = load(tiny_tokenizer, path, "numina")
    lengths = dict(zip(everything.manifest["row_ids"], map(len, everything.dataset["input_ids"])))
    data = load(tiny_tokenizer, path, "numina", max_row_tokens=11, sample_rows=10, sample_seed=42)
    fits = [row for row, length in lengths.items() if length < 11]
    expected = datasets.Dataset.from_dict({"row": fits}).shuffle(seed=42)["row"][:10]
    assert data.manifest["row_ids"] == list(expected)
    assert 0 < data.manifest["rows"]["of max_row_tokens or more"] == 40 - len(fits)


def test_when_fewer_rows_fit_than_the_sample_has_all_are_used_and_it_is_noted(rows_file, tiny_tokenizer):
    data = load(tiny_tokenizer, rows_file("numina", 40), "numina", sample_rows=41, multiple_of=16)
    assert data.manifest["rows"]["sampled"] == 40
    assert len(data.dataset) == 32
    assert data.manifest["notes"] == ["sample_rows=41, but only 40 rows remain after filtering: all of them are used."]


def test_rows_without_a_label_within_max_length_are_dropped(rows_file, tiny_tokenizer):
    path = rows_file("numina")
    prompt_length = load(tiny_tokenizer, path, "numina").dataset[0]["labels"].count(IGNORED)
    assert load(tiny_tokenizer, path, "numina", max_length=prompt_length + 1).manifest["rows"]["used"] == 20
    with pytest.raises(ValueError, match="fewer than one global batch"):
        load(tiny_tokenizer, path, "numina", max_length=prompt_length)


@settings(max_examples=10, deadline=None)
@given(multiple=st.integers(1, 12))
def test_rows_are_cut_to_a_multiple_of_the_global_batch(multiple, tiny_tokenizer):
    rows = datasets.Dataset.from_dict({"text": [f"w{i}" for i in range(12)]})
    data = load_training_data(DataSettings(dataset_name="mine"), tiny_tokenizer, multiple_of=multiple, rows=rows)
    assert len(data.dataset) == 12 // multiple * multiple
    assert data.manifest["rows"]["after the last full batch"] == 12 % multiple


@pytest.mark.parametrize("form", ["jsonl", "parquet", "directory", "save_to_disk", "save_to_disk_splits"])
def test_local_files_of_every_form_give_the_same_rows(form, rows_file, tiny_tokenizer, tmp_path):
    path = rows_file("numina")
    expected = load(tiny_tokenizer, path, "numina").dataset["input_ids"]
    rows = datasets.load_dataset("json", data_files=path, split="train")
    place = tmp_path / "stored"
    if form == "jsonl":
        place = path
    elif form == "parquet":
        place = tmp_path / "rows.parquet"
        rows.to_parquet(place)
    elif form == "directory":
        place.mkdir()
        rows.to_json(place / "train.jsonl")
    elif form == "save_to_disk":
        rows.save_to_disk(place)
    else:
        datasets.DatasetDict(train=rows, test=rows.select([0])).save_to_disk(place)
    assert load(tiny_tokenizer, str(place), "numina").dataset["input_ids"] == expected


def test_documents_need_input_ids_and_labels(tmp_path):
    rows = datasets.Dataset.from_dict({"input_ids": [[1, 2]], "labels": [[IGNORED, 2]]})
    rows.to_parquet(tmp_path / "rows.parquet")
    rows.save_to_disk(tmp_path / "stored")
    for name in ("rows.parquet", "stored"):
        assert load_documents(str(tmp_path / name)).to_list() == rows.to_list()
    rows.remove_columns("labels").to_json(tmp_path / "bare.jsonl")
    with pytest.raises(ValueError, match=r"needs the column 'labels', but the rows have input_ids.*use a recipe"):
        load_documents(str(tmp_path / "bare.jsonl"))
    with pytest.raises(ValueError, match="is not a data set: give a save_to_disk directory"):
        load_documents(str(tmp_path / "absent"))


def test_other_data_sets_are_passed_on_unchanged(tiny_tokenizer, tmp_path):
    rows = [{"messages": [{"role": "user", "content": "w1"}, {"role": "assistant", "content": "w2"}]} for _ in range(3)]
    path = tmp_path / "chat.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = load_training_data(DataSettings(dataset_name=str(path)), tiny_tokenizer)
    assert data.dataset.to_list() == rows


def test_own_columns_are_read_as_the_papers_sets_are(rows_file, tiny_tokenizer, tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"q": "w1 ?", "facts": {"a": "w2"}}\n{"q": "w3 ?", "facts": {"a": ""}}\n')
    settings = DataSettings(dataset_name=str(path), question_column="q", response_column="facts.a", max_row_tokens=9)
    data = load_training_data(settings, tiny_tokenizer, text_column="text")
    assert tiny_tokenizer.decode(data.dataset[0]["input_ids"]) == "<|user|> w1 ? <|assistant|> w2 <|eos|>"
    assert data.manifest["rows"]["without a demonstration"] == 1
    misspelled = DataSettings(dataset_name=str(path), question_column="qq", response_column="facts.a")
    with pytest.raises(ValueError, match=rf"'{path}' needs the column 'qq', .*Did you mean 'q'.*--question_column"):
        load_training_data(misspelled, tiny_tokenizer)
    with pytest.raises(ValueError, match="one of them is missing"):
        load_training_data(DataSettings(dataset_name=str(path), question_column="q"), tiny_tokenizer)


def test_columns_in_none_of_the_formats_raise_and_the_formats_are_named(tiny_tokenizer, tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"q": "w1 ?", "a": "w2"}\n')
    for others in ({}, {"prompt": "boxed", "max_row_tokens": 9}):  # which a recipe of another data set may still set
        with pytest.raises(ValueError, match=r"columns q, a.*messages; prompt and completion; text .*--data_dir FILE"):
            load_training_data(DataSettings(dataset_name=str(path), **others), tiny_tokenizer, text_column="text")
    assert len(load_training_data(DataSettings(dataset_name=str(path)), tiny_tokenizer, text_column="q").dataset) == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [("prompt", "boxed"), ("response", "distilled"), ("max_row_tokens", 9)],
    ids=lambda value: str(value),
)
def test_settings_without_an_effect_raise(key, value, tiny_tokenizer, tmp_path):
    (tmp_path / "mine.jsonl").write_text('{"text": "w1"}\n')
    settings = DataSettings(dataset_name=str(tmp_path / "mine.jsonl"), **{key: value})
    with pytest.raises(ValueError, match=f"{key}={value!r} has no effect"):
        load_training_data(settings, tiny_tokenizer)


def test_a_curated_directory_may_be_given_the_settings_of_its_source(tiny_tokenizer, tmp_path):
    datasets.Dataset.from_dict({"text": ["w1"]}).save_to_disk(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": "text"}')
    settings = DataSettings(dataset_name=str(tmp_path), prompt="boxed", max_row_tokens=9)
    assert load_training_data(settings, tiny_tokenizer).manifest["rows"]["used"] == 1


def test_one_file_is_the_training_split_and_no_other(rows_file, tiny_tokenizer, tmp_path):
    path = rows_file("numina")
    with pytest.raises(ValueError, match=r"has no split 'test'.* such as train.jsonl and test.jsonl"):
        load(tiny_tokenizer, path, "numina", dataset_train_split="test")
    datasets.load_dataset("json", data_files=path, split="train").save_to_disk(tmp_path / "stored")
    with pytest.raises(ValueError, match="has no split 'test'"):
        load(tiny_tokenizer, str(tmp_path / "stored"), "numina", dataset_train_split="test")


def test_a_missing_column_names_the_columns_found(rows_file, tiny_tokenizer):
    with pytest.raises(ValueError, match=r"needs the column 'target', but the rows have prompt"):
        load(tiny_tokenizer, rows_file("openr1", drop="target"), "openr1")
    named = r"columns 'extra_info.question', 'extra_info.answer', but the rows have data_source.*--question_column"
    with pytest.raises(ValueError, match=named):
        load(tiny_tokenizer, rows_file("numina", drop="extra_info"), "numina")


def test_a_data_set_that_cannot_be_loaded_raises_with_a_remedy(tiny_tokenizer, tmp_path):
    with pytest.raises(OSError, match=r"gaotang/numina-cot-subset-67k.* --data_dir"):
        load_training_data(DataSettings(dataset_name="numina"), tiny_tokenizer)
    with pytest.raises(OSError, match="Did you mean 'numina'"):
        load_training_data(DataSettings(dataset_name="numia"), tiny_tokenizer)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load_training_data(DataSettings(dataset_name="numina", data_dir=str(tmp_path / "no")), tiny_tokenizer)
    with pytest.raises(ValueError, match="numina, openr1, m23k"):
        load_training_data(DataSettings(), tiny_tokenizer)


@pytest.mark.parametrize("name", ["mine.jsonl", "data/mine.parquet", "./mine", "/no/such/rows"])
def test_a_local_file_that_does_not_exist_is_named_as_such(name, tiny_tokenizer):
    with pytest.raises(FileNotFoundError, match=f"there is no file or directory '{name}'"):
        load_training_data(DataSettings(dataset_name=name), tiny_tokenizer)


def test_a_name_that_could_be_local_or_on_the_hub_is_searched_in_both(tiny_tokenizer):
    with pytest.raises(OSError, match="There is no local file or directory 'data/mine' either"):
        load_training_data(DataSettings(dataset_name="data/mine"), tiny_tokenizer)


def test_manifest_is_written_beside_the_run(rows_file, tiny_tokenizer, tmp_path):
    data = load(tiny_tokenizer, rows_file("numina"), "numina", multiple_of=8)
    data.write_manifest(tmp_path / "run")
    written = json.loads((tmp_path / "run" / "data_manifest.json").read_text())
    assert written == data.manifest
    assert written["rows"]["used"] == len(written["row_ids"]) == 16
    assert written["end_token"] == "<|eos|>"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b'{"question": "w1"}\n{"question": "w', "Trailing data|Unterminated|Missing"),  # cut by a full disk
        (b'{"question": "w1 \\ud800"}\n', "Trailing data|surrogate"),
        (b'{"question": "w1 \xff"}\n', "UTF8"),
        (b"", "no rows"),
    ],
    ids=["cut", "half a surrogate pair", "not UTF-8", "empty"],
)
def test_a_file_that_cannot_be_read_is_named(content, why, tmp_path, tiny_tokenizer):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"rows\.jsonl cannot be read: .*({why})"):
        load_training_data(DataSettings(dataset_name=str(path)), tiny_tokenizer)
