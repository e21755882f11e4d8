"""`qsft sweep`, `eval` and `cache info|verify` with the options of a training instead of a recipe, or with a recipe."""

import json

import pytest

from qsft.cli import main
from qsft.experiments import sweep as sweep_module


@pytest.fixture
def training_options(local_words, tmp_path, monkeypatch):
    """The options of a tiny training on a user's own rows."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QSFT_CACHE", str(tmp_path / "caches"))
    rows = [{"prompt": f"w{number} w1", "completion": f" w{number}"} for number in range(16)]
    (tmp_path / "my.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "sums.jsonl").write_text('{"problem": "w1 + w2 = ?", "answer": "3"}\n')
    words = local_words(dataset_name="my.jsonl", max_steps=1)
    at = words.index("--data_dir")
    return words[:at] + words[at + 2 :]


def test_a_sweep_and_the_evaluation_of_what_was_trained(training_options, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(sweep_module, "run_child", lambda command: (main(command[3:]), False))
    evaluation = "--tasks sums.jsonl --max_new_tokens 4 --num_samples 1"
    assert main(["sweep", "--grid", "target=sft,dft", "--eval", evaluation, *training_options]) == 0
    assert (tmp_path / "sweeps" / "run" / "comparison" / "comparison.json").is_file()

    options = [*training_options, "--target", "sft"]
    assert main(["train", *options]) == 0
    assert main(["eval", "--tasks", "sums.jsonl", "--max_new_tokens", "4", "--num_samples", "1", *options]) == 0
    assert (tmp_path / "runs" / "run-sft" / "_eval" / "summary.json").is_file()


def test_eval_of_a_model_given_by_its_key(tiny_files, training_options, tmp_path):
    student = str(tiny_files / "student")
    words = ["--tasks", "sums.jsonl", "--max_new_tokens", "4", "--num_samples", "1", "--output_dir", "out"]
    assert main(["eval", "--model_name_or_path", student, *words]) == 0
    settings = json.loads((tmp_path / "out" / "summary.json").read_text())["settings"]
    assert settings["model"] == student


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["eval"], "Name a MODEL or a RECIPE, or give --model_name_or_path"),
        (["eval", "some/model", "--target", "dft"], "'--target' is not an option of `qsft eval` with a model"),
        (["eval", "numina_qwen_math_1p5b", "--target", "dft"], "Run `qsft train numina_qwen_math_1p5b --target dft`"),
        (["eval", "numina_qwen_math_1p5b", "--limt", "3"], "'limt' is not a key. Did you mean 'limit'"),
        (["plan", "numina_qwen_math_1p5b", "--gpu", "8"], "'gpu' is not a key. Did you mean 'gpus'"),
        (["explore", "tokens", "demo", "--num_document", "4"], "Did you mean 'num_documents'"),
        (["train", "demo", "--accelerate_confg", "zero3"], "Did you mean 'accelerate_config'"),
        (["train", "--keys", "nosuchthing"], "no key contains 'nosuchthing'"),
        (["train", "--keys", "learnig_rate"], "Did you mean 'learning_rate'"),
        (["sweep", "--grid", "target=sft"], "nothing is given. Name a RECIPE, or give --model_name_or_path"),
        (["cache", "info"], "nothing is given. Name a RECIPE"),
        (["cache", "info", "nowhere"], "there is no teacher cache nowhere"),
        (["cache", "info", "nowhere", "--target", "sft"], "nowhere is not a recipe"),
        (["cache", "info", "numina_qwen_math_1p5b", "--target", "dft"], "does not read a teacher cache"),
        (["train", "some/model", "--target", "dft"], "write --model_name_or_path some/model"),
        (["train", "--target", "dft", "--dataset_name", "my.jsonl"], "Add --model_name_or_path NAME"),
        (["train", "--target", "dft", "--eta", "0.2"], "the target dft has no hyper-parameter 'eta'. It takes: none"),
        (["cache", "verify", "demo"], "there is no directory caches/demo"),
        (["eval", "demo", "--dry_run"], "`qsft eval` has no dry run, so it would start. Leave --dry_run out"),
        (["eval", "--model_name_or_path", "some/model", "--dry_run"], "`qsft eval` has no dry run"),
        (["cache", "build", "demo", "--dry_run"], "`qsft cache build` has no dry run"),
        (["explore", "tokens", "demo", "--dry_run"], "`qsft explore tokens` has no dry run"),
        (["curate", "rft", "demo", "--output_dir", "rft", "--dry_run"], "`qsft curate rft` has no dry run"),
    ],
)
def test_what_is_missing_or_does_not_fit_is_an_error(words, message, training_options, tiny_files, capsys):
    if "dft" in words and words[0] == "cache":
        words = [*words, "--model_name_or_path", str(tiny_files / "student")]
    assert main(words) == 2
    assert message in capsys.readouterr().err


def test_eval_of_a_recipe_whose_run_did_not_start_names_the_training(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "demo-sft").mkdir(parents=True)
    assert main(["eval", "demo", "--target", "sft"]) == 2
    assert "runs/demo-sft holds no model. Run `qsft train demo --target sft` first" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["demo", "--seed", "3"], "qsft demo: error: unrecognized arguments: --seed 3. Did you mean '--seeds'"),
        (["targets", "--mardown"], "Did you mean '--markdown'"),
        (["cache", "list", "--older_than", "3"], "qsft cache list: error: unrecognized arguments: --older_than."),
    ],
)
def test_an_unknown_option_of_a_command_without_keys_is_an_error_of_that_command(words, message, capsys):
    with pytest.raises(SystemExit):
        main(words)
    assert message in capsys.readouterr().err


def test_cache_verify_finds_the_cache_of_the_teacher_that_is_given(training_options, tiny_files, capsys):
    assert main(["cache", "build", *training_options]) == 0
    at = training_options.index("--teacher_model_name_or_path")
    options = [*training_options[:at], "--teacher", str(tiny_files / "teacher"), *training_options[at + 2 :]]
    capsys.readouterr()
    assert main(["cache", "verify", "--sample", "4", *options]) == 0
    printed = capsys.readouterr().out
    assert "all sound" in printed
    assert "aligned: the log-probs at shift 0 are the teacher's" in printed


def test_cache_info_and_verify_take_a_recipe_or_its_keys(training_options, tmp_path, capsys):
    assert main(["cache", "build", *training_options]) == 0
    capsys.readouterr()
    assert main(["cache", "info", *training_options]) == 0
    assert "16 in 1 shard\n" in capsys.readouterr().out
    recipe = tmp_path / "mine.yaml"
    pairs = zip(training_options[::2], training_options[1::2], strict=True)
    recipe.write_text("".join(f"{key.removeprefix('--')}: {value}\n" for key, value in pairs))
    assert main(["cache", "verify", str(recipe)]) == 0
    assert "all sound" in capsys.readouterr().out


@pytest.fixture
def base_options(training_options, tiny_tokenizer, tiny_files, tmp_path):
    """The options of a training on a student without a chat template, of rows that need one."""
    import tiny

    tiny.save(tmp_path / "base", tiny.make_model(0, "llama", hidden_size=32), tiny.make_tokenizer(chat_template=None))
    (tmp_path / "qa.jsonl").write_text('{"q": "w1", "a": "w2"}\n' * 16)
    columns = ["--dataset_name", "qa.jsonl", "--question_column", "q", "--response_column", "a"]
    return [*training_options, "--model_name_or_path", "base", *columns, "--target", "sft"]


def test_the_chat_template_of_a_file_or_a_model_is_used_for_columns(base_options, tiny_files, tmp_path, capsys):
    assert main(["train", "--dry_run", *base_options]) == 2
    assert "--chat_template_path FILE.jinja" in capsys.readouterr().err
    template = tmp_path / "own.jinja"
    template.write_text("{% for message in messages %}w9 {{ message['content'] }} {% endfor %}w8 ")
    assert main(["train", "--dry_run", *base_options, "--chat_template_path", str(template)]) == 0
    assert "w9 w1 w8" in capsys.readouterr().out
    assert main(["train", *base_options, "--chat_template_path", str(tiny_files / "student")]) == 0
    from transformers import AutoTokenizer

    trained = AutoTokenizer.from_pretrained(tmp_path / "runs" / "run-sft")
    assert trained.chat_template == AutoTokenizer.from_pretrained(tiny_files / "student").chat_template
