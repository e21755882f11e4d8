"""Reading a recipe: both languages of the file, overrides, and errors that name the line."""

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qsft.cli import main
from qsft.recipe.job import configure, divisors, split_batch
from qsft.recipe.prepare import make_models
from qsft.recipe.recipe_file import announce_recipe, find_recipe, packaged_recipes, read_recipe
from qsft.recipe.relaunch import (
    LAUNCHER_OPTIONS,
    accelerate_command,
    find_accelerate_config,
    relaunch,
    run_child,
    split_words,
)
from qsft.user_functions import import_function


@pytest.fixture
def recipe_file(tmp_path):
    def write(text, name="mine.yaml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_values_and_defaults(recipe_file):
    path = recipe_file('learning_rate: 5.0e-5\ntarget_kwargs: {"eta": 0.5}\ndataset_name: "numina"\nuse_peft: True\n')
    recipe = read_recipe(path)
    assert recipe.name == "mine"
    assert recipe.values == {
        "learning_rate": 5e-5,
        "target_kwargs": {"eta": 0.5},
        "dataset_name": "numina",
        "use_peft": True,
    }
    assert recipe.settings.sample_seed == 42


def test_the_last_line_is_python_and_not_a_key(recipe_file):
    path = recipe_file('seed: 1\nif __name__ == "__main__": from qsft.recipe import launch; launch(__file__)\n')
    assert read_recipe(path).values == {"seed": 1}


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("learning_rate: 5e-5", {"learning_rate": 5e-5}),  # text in YAML 1.1, a number in Python
        ("teacher_cache: None", {"teacher_cache": None}),
        ("bf16: 1", {"bf16": True}),
        ("report_to: none", {"report_to": "none"}),
        ('report_to: ["tensorboard", "wandb"]', {"report_to": ["tensorboard", "wandb"]}),
        ("lora_target_modules: [q_proj]", {"lora_target_modules": ["q_proj"]}),
        ("save_steps: 0.5", {"save_steps": 0.5}),
        ('output_dir: "--odd"', {"output_dir": "--odd"}),
        ("pad_to_multiple_of: 8", {"pad_to_multiple_of": 8}),
        ("fsdp_config: fsdp.json", {"fsdp_config": "fsdp.json"}),
    ],
)
def test_a_value_is_read_as_its_field_declares(line, value, recipe_file):
    assert read_recipe(recipe_file(line)).values == value


def test_nested_files_are_flattened(recipe_file):
    path = recipe_file("model:\n  dtype: bfloat16\ntraining:\n  optimizer:\n    learning_rate: 0.1\n  max_steps: 3\n")
    assert read_recipe(path).values == {"dtype": "bfloat16", "learning_rate": 0.1, "max_steps": 3}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("max_length: 3072.5", r"mine.yaml:2: max_length: invalid int value: '3072.5'. `qsft train --keys` explains"),
        ("bf16: 2", r"mine.yaml:2: bf16: Truthy value expected: got 2"),
        ("seed: True", r"mine.yaml:2: seed: invalid int value: 'True'"),
        ("curate: 3", r"mine.yaml:2: curate: '3' is not a JSON object"),
        ("learnig_rate: 0.1", r"mine.yaml:2: 'learnig_rate' is not a key. Did you mean 'learning_rate'"),
        ("dtype: 'float8'", r"mine.yaml:2: dtype: invalid choice: 'float8' \(choose from 'auto', 'bfloat16'"),
        ("# x\noutput_dir: a\noutput_dir: b", r"mine.yaml:4: output_dir is already set at .*mine.yaml:3"),
        ("warmup_steps: (1, 2)", r"mine.yaml:2: warmup_steps: invalid float value: '\(1, 2\)'"),
        ("seed:", r"mine.yaml:2: seed: null is not possible here: leave the key out"),
        ("dataset_train_split: None", r"mine.yaml:2: dataset_train_split: null is not possible here"),
        ("a: [1", r"mine.yaml:.*not YAML"),
    ],
)
def test_errors_name_file_and_line(line, message, recipe_file):
    with pytest.raises(ValueError, match=message):
        read_recipe(recipe_file(f'target: "sft"\n{line}\n'))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--learning_rate", "5e-5"], {"learning_rate": 5e-5}),
        (["--learning-rate=1"], {"learning_rate": 1.0}),
        (["--max_steps", "-1"], {"max_steps": -1}),
        (["--bf16", "false"], {"bf16": False}),
        (["--dry_run"], {"dry_run": True}),
        (["--teacher_cache", "None"], {"teacher_cache": None}),
        (["--report_to", "none"], {"report_to": "none"}),
        (["--target_kwargs", '{"eta": 0.2}'], {"target_kwargs": {"eta": 0.2}}),
        (["--target_kwargs.eta", "0.2"], {"target_kwargs": {"eta": 0.2, "tail": "drop"}}),
        (["--target_kwargs.tail", "ghost"], {"target_kwargs": {"eta": 0.5, "tail": "ghost"}}),
        (["--lora_target_modules", "q_proj", "v_proj"], {"lora_target_modules": ["q_proj", "v_proj"]}),
        (["--lora_target_modules", '["q_proj"]'], {"lora_target_modules": ["q_proj"]}),
        (["--lora_target_modules", "null"], {"lora_target_modules": None}),
        (["--report_to", "tensorboard", "wandb"], {"report_to": ["tensorboard", "wandb"]}),
        (["--no_gradient_checkpointing"], {"gradient_checkpointing": False}),
        (["--bf16"], {"bf16": True}),
        (["--dataset_name", "some/set"], {"dataset_name": "some/set"}),
        (["--dataset-name=some/set", "--max_steps", "1"], {"dataset_name": "some/set", "max_steps": 1}),
        (["--output_dir", "1"], {"output_dir": "1"}),
        (["--save_steps", "0.5"], {"save_steps": 0.5}),
    ],
)
def test_overrides(words, expected, recipe_file):
    path = recipe_file('target: "target_sft"\ntarget_kwargs: {"eta": 0.5, "tail": "drop"}\n')
    assert {"target": "target_sft", **expected}.items() <= read_recipe(path, words).values.items()


def test_another_target_starts_from_its_own_defaults(recipe_file):
    path = recipe_file('target: "target_sft"\ntarget_kwargs: {"eta": 0.5}\n')
    assert "target_kwargs" not in read_recipe(path, ["--target", "sft"]).values
    assert read_recipe(path, ["--target", "target_sft"]).values["target_kwargs"] == {"eta": 0.5}
    assert read_recipe(path, ["--target", "kd_hybrid", "--target_kwargs.c", "0.2"]).values["target_kwargs"] == {
        "c": 0.2
    }


@pytest.mark.parametrize(
    ("words", "protocol"),
    [
        ([], "paper-math-7b-openr1"),
        (["--target", "kd_hybrid"], "paper-math-7b-openr1"),
        (["--target", "sft"], "paper-math"),
        (["--target", "dft"], "paper-math"),
        (["--eval_protocol", "paper-medical"], "paper-medical"),
    ],
)
def test_the_papers_exception_of_the_protocol_is_for_kd_and_target_sft(words, protocol):
    assert read_recipe("openr1_qwen_math_7b", words).eval_protocol == protocol


def test_another_data_set_starts_from_its_own_defaults(recipe_file):
    path = recipe_file("dataset_name: openr1\nsample_rows: 9\ndata_dir: here\nprompt: boxed\n")
    recipe = read_recipe(path, ["--dataset_name", "other", "--data_dir", "there"])
    assert recipe.values == {"dataset_name": "other", "data_dir": "there", "prompt": "boxed"}
    assert recipe.set_aside == {"sample_rows": 9, "data_dir": "here"}
    assert read_recipe(path, ["--dataset_name", "openr1"]).settings.sample_rows == 9


@pytest.mark.parametrize(
    ("in_file", "option"),
    [("teacher_model_name_or_path", "teacher"), ("teacher", "teacher_model_name_or_path")],
)
def test_another_teacher_takes_the_place_of_the_files(in_file, option, recipe_file):
    path = recipe_file(f"{in_file}: org/first\n")
    recipe = read_recipe(path, [f"--{option}", "org/second"])
    assert recipe.values == {option: "org/second"}
    assert recipe.set_aside == {in_file: "org/first"}
    assert read_recipe(path).values == {in_file: "org/first"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lerning_rate", "1"], "--lerning_rate: 'lerning_rate' is not a key. Did you mean 'learning_rate'"),
        (["--max_length", "long"], "--max_length: invalid int value: 'long'"),
        (["--seed", "1", "2"], "'2' is not an option, and no option before it takes a value"),
        (["--seed"], "--seed: expected one argument"),
        (["--prompt", "poem"], "--prompt: invalid choice: 'poem' \\(choose from 'question', 'boxed'"),
        (["--target_kwargs.eta", "1", "--target_kwargs", "half"], "target_kwargs: 'half' is not a dict"),
        (["--num_processes", "4"], "an option of the launcher, .* --accelerate_config ddp"),
        (["oops", "--seed", "1"], "'oops' is not an option"),
    ],
)
def test_override_errors(words, message, recipe_file):
    with pytest.raises(ValueError, match=message):
        read_recipe(recipe_file("seed: 1\n"), words)


def test_packaged_recipes_are_found_by_name():
    assert find_recipe("numina_qwen_math_1p5b").name == "numina_qwen_math_1p5b.yaml"
    assert {"demo", "m23k_llama_8b"} <= {file.stem for file in packaged_recipes()}
    with pytest.raises(FileNotFoundError, match="Did you mean 'numina_qwen_math_1p5b'"):
        find_recipe("numina_qwen_math_1p5")


@given(global_batch=st.integers(1, 512), per_device=st.integers(1, 64), processes=st.integers(1, 64))
def test_split_batch_multiplies_to_the_global_batch_or_names_counts_that_work(global_batch, per_device, processes):
    if global_batch % processes:
        with pytest.raises(ValueError, match=f"work: {', '.join(map(str, divisors(global_batch)))}\\."):
            split_batch(global_batch, per_device, processes)
    else:
        batch, accumulation = split_batch(global_batch, per_device, processes)
        assert batch * accumulation * processes == global_batch
        assert batch <= per_device
        assert not any(n > batch for n in divisors(global_batch // processes) if n <= per_device)


def test_accelerate_config_becomes_an_accelerate_command():
    words, rest = split_words(["recipes/x.yaml", "--num_processes", "4", "--seed", "1"], LAUNCHER_OPTIONS)
    command = accelerate_command(find_accelerate_config("zero3"), words, rest)
    assert command[2:4] == ["accelerate.commands.accelerate_cli", "launch"]
    assert command[5].endswith("accelerate/zero3.yaml")
    assert command[6:] == ["--num_processes", "4", "-m", "qsft", "train", "recipes/x.yaml", "--seed", "1"]
    with pytest.raises(ValueError, match="Did you mean 'zero3' or 'zero2'"):
        find_accelerate_config("zero9")


def test_deepspeed_that_is_not_installed_is_an_error_before_anything_starts(monkeypatch):
    monkeypatch.setattr("qsft.recipe.relaunch.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="zero3 needs DeepSpeed, which is not installed"):
        relaunch("zero3", ["demo"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["demo", "--num_processes", "2", "--lr", "1"], "Did you mean 'learning_rate'"),
        (["demi", "--num_processes", "2"], "there is no recipe 'demi'"),
    ],
)
def test_a_wrong_option_is_an_error_before_processes_are_started(words, message, monkeypatch, capsys):
    monkeypatch.setattr("qsft.recipe.relaunch.run_child", lambda *_, **__: pytest.fail("processes were started"))
    assert main(["train", *words, "--accelerate_config", "cpu"]) == 2
    assert message in capsys.readouterr().err


def test_python_files_in_the_working_directory_are_not_run_by_child_processes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "json.py").write_text("open('executed', 'w').close()")
    code, _ = run_child([sys.executable, "-m", "json.tool", "--help"])
    assert code == 0
    assert not (tmp_path / "executed").exists()


def test_a_function_of_the_working_directory_is_found_and_the_directory_is_not_kept_on_the_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    (tmp_path / "own_functions_of_a_user.py").write_text("def rows(seed):\n    return seed\n")
    assert import_function("own_functions_of_a_user:rows", "dataset_name")(3) == 3
    assert str(tmp_path) not in sys.path


def test_split_words_takes_one_value_each_and_keeps_the_order():
    own, rest = split_words(["--c", "3", "r", "--a", "1", "--b=2", "x"], ("b", "c"))
    assert own == ["--c", "3", "--b=2"]
    assert rest == ["r", "--a", "1", "x"]


@pytest.mark.parametrize(
    ("words", "directory"),
    [
        ([], "runs/demo-target_sft"),
        (["--target", "sft"], "runs/demo-sft"),
        (["--target_kwargs.eta", "0.2"], "runs/demo-target_sft-eta0.2"),
        (["--target_kwargs", '{"eta": 1.0, "tail": "ghost"}'], "runs/demo-target_sft-eta1.0-tailghost"),
        (["--target=kd_hybrid", "--target_kwargs.c=0.5"], "runs/demo-kd_hybrid-c0.5"),
        (["--target_kwargs.eta", "0.2", "--output_dir", "mine"], "mine"),
    ],
)
def test_runs_with_other_hyper_parameters_go_apart(words, directory):
    small = ["--model_name_or_path", "unread", "--max_steps", "1"]
    assert configure(read_recipe("demo", [*words, *small]), processes=1).args.output_dir == directory


NESTED = "a: " + "[" * 3000 + "]" * 3000
BOMB = "a: &a [1, 2, 3, 4, 5, 6, 7, 8, 9]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(12)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (NESTED, "mine.yaml: nested too deeply"),
        (BOMB, r"mine.yaml:\d+: more than 10,000 values with the aliases"),
        ("target_kwargs: &a {eta: *a}", "mine.yaml:1: more than 10,000 values"),
        ("section: &a {section: *a}", "mine.yaml:1: more than 10,000 values"),
        (
            "seed: !!python/object/apply:os.system ['exit 7']",
            "mine.yaml:1: not YAML: could not determine a constructor",
        ),
        ("seed: !!python/name:os.system", "mine.yaml:1: not YAML: could not determine a constructor"),
        ("? {a: 1}\n: 2", "mine.yaml:1: .* is not a key"),
        ("- seed", "a recipe is a list of `key: value` lines"),
        ("", "a recipe is a list of `key: value` lines"),
        ("seed: 1\n---\nseed: 2", "mine.yaml:2: not YAML"),
        ("\x00", "mine.yaml.*not YAML"),
    ],
    ids=lambda text: text[:12],
)
def test_hostile_files_are_named_and_nothing_runs(text, message, recipe_file):
    with pytest.raises(ValueError, match=message):
        read_recipe(recipe_file(text))


def test_reading_a_recipe_runs_nothing_of_it(recipe_file, tmp_path):
    ran = tmp_path / "ran"
    assert read_recipe(recipe_file(f'seed: 1\nif __name__ == "__main__": open({str(ran)!r}, "w")\n')).values == {
        "seed": 1
    }
    assert not ran.exists()


def test_a_file_in_another_encoding_is_named(tmp_path):
    (tmp_path / "mine.yaml").write_bytes("seed: 1 # é".encode("latin-1"))
    with pytest.raises(ValueError, match=r"mine.yaml: not a text file in UTF-8"):
        read_recipe(tmp_path / "mine.yaml")


def test_json_written_by_a_program_is_a_recipe_too(recipe_file):
    assert read_recipe(recipe_file(json.dumps({"seed": 3}))).values == {"seed": 3}


def test_functions_that_a_recipe_names_are_called_by_prepare_and_not_by_configure(monkeypatch, tmp_path):
    from qsft.demo import recipe_functions

    calls = []

    def demo_models(seed):
        calls.append(seed)
        return tmp_path / "base", tmp_path / "teacher"

    monkeypatch.setattr(recipe_functions, "demo_models", demo_models)
    for words, teacher in (([], str(tmp_path / "teacher")), (["--teacher_model_name_or_path", "mine"], "mine")):
        job = configure(read_recipe("demo", ["--seed", "3", *words]), processes=1)
        assert calls == []
        made = make_models(job)
        assert (made.student, made.args.teacher_model_name_or_path) == (str(tmp_path / "base"), teacher)
        assert set(calls) == {3}
        calls.clear()
        assert job.student == "qsft.demo.recipe_functions:base_model"  # the job itself stays as it was


def test_a_function_that_does_not_exist_is_named(recipe_file):
    job = configure(read_recipe("demo", ["--model_name_or_path", "nosuch_module:model"]), processes=1)
    with pytest.raises(ValueError, match="model_name_or_path 'nosuch_module:model' cannot be loaded"):
        make_models(job)


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "-inf"])
def test_a_learning_rate_that_is_not_a_positive_number_is_an_error(value, recipe_file):
    with pytest.raises(ValueError, match="learning_rate"):
        read_recipe(None, ["--learning_rate", value])
    with pytest.raises(ValueError, match=r"mine.yaml:1: learning_rate"):
        read_recipe(recipe_file(f"learning_rate: {value}\n"))


def test_a_hyper_parameter_of_the_target_is_an_option_by_its_name():
    assert read_recipe("numina_qwen_math_1p5b", ["--eta", "0.2"]).values["target_kwargs"] == {"eta": 0.2}
    recipe = read_recipe("numina_qwen_math_1p5b", ["--target", "kd_hybrid", "--c=0.5"])
    assert recipe.values["target_kwargs"] == {"c": 0.5}
    assert recipe.output_dir == "runs/numina_qwen_math_1p5b-kd_hybrid-c0.5"
    with pytest.raises(ValueError, match="the target sft has no hyper-parameter 'eta'"):
        read_recipe("numina_qwen_math_1p5b", ["--target", "sft", "--eta", "0.2"])


@pytest.mark.parametrize(
    ("given", "suggested"),
    [
        ("lr", "learning_rate"),
        ("dataset", "dataset_name"),
        ("learnin_rate", "learning_rate"),
        ("epochs", "num_train_epochs"),
        ("etta", "eta"),
    ],
)
def test_an_unknown_option_suggests_the_right_one(given, suggested):
    with pytest.raises(ValueError, match=f"Did you mean '{suggested}'"):
        read_recipe("numina_qwen_math_1p5b", [f"--{given}", "1"])


def test_accumulation_that_contradicts_the_global_batch_is_an_error():
    words = ["--global_batch_size", "64", "--per_device_train_batch_size", "8", "--gradient_accumulation_steps"]
    assert configure(read_recipe("demo", [*words, "8"]), processes=1).args.gradient_accumulation_steps == 8
    with pytest.raises(ValueError, match="=2 contradicts global_batch_size=64: with 1 process and at most 8"):
        configure(read_recipe("demo", [*words, "2"]), processes=1)


def test_a_bare_name_is_the_packaged_recipe_even_if_a_file_has_that_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("demo", "demo.yaml"):
        (tmp_path / name).write_text("seed: 77\n")
    packaged = read_recipe("demo")
    assert packaged.values["seed"] == 0
    announce_recipe(packaged)
    assert "demo.yaml (comes with qsft)" in capsys.readouterr().err
    for name in ("demo.yaml", "./demo"):
        recipe = read_recipe(name)
        assert recipe.values == {"seed": 77}
        announce_recipe(recipe)
        assert "(local file)" in capsys.readouterr().err


def test_a_wrong_batch_is_an_error_before_the_demos_models_are_trained(monkeypatch):
    from qsft.demo import recipe_functions

    monkeypatch.setattr(recipe_functions, "demo_models", lambda seed: pytest.fail("models were made"))
    with pytest.raises(ValueError, match="global_batch_size=64 cannot be divided over 3 processes"):
        configure(read_recipe("demo"), processes=3)
