"""Reading a recipe: both languages of the file, overrides, and errors that name the line."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qsft.recipe.job import configure
from qsft.recipe.launcher import accelerate_command, split_words
from qsft.recipe.read import DEFAULT_TARGET, find_recipe, packaged_recipes, read_recipe
from qsft.recipe.settings import divisors, split_batch


@pytest.fixture
def recipe_file(tmp_path):
    def write(text, name="mine.yaml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_values_and_defaults(recipe_file):
    path = recipe_file('learning_rate: 5.0e-5\ntarget_kwargs: {"eta": 0.5}\ndataset: "numina"\nuse_peft: True\n')
    recipe = read_recipe(path)
    assert recipe.name == "mine"
    assert recipe.values == {
        "learning_rate": 5e-5,
        "target_kwargs": {"eta": 0.5},
        "dataset": "numina",
        "use_peft": True,
    }
    assert recipe.settings.sample_seed == 42


def test_the_last_line_is_python_and_not_a_key(recipe_file):
    path = recipe_file('seed: 1\nif __name__ == "__main__": from qsft.recipe import launch; launch(__file__)\n')
    assert read_recipe(path).values == {"seed": 1}


def test_nested_files_are_flattened(recipe_file):
    path = recipe_file("model:\n  dtype: bfloat16\ntraining:\n  optimiser:\n    learning_rate: 0.1\n  max_steps: 3\n")
    assert read_recipe(path).values == {"dtype": "bfloat16", "learning_rate": 0.1, "max_steps": 3}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("learning_rate: 5e-5", r"mine.yaml:2: learning_rate: '5e-5' is text in YAML 1.1. Write 5.0e-05, without"),
        ("teacher_cache: None", r"mine.yaml:2: teacher_cache: 'None' is text in YAML. Leave the key out"),
        ("max_length: 3072.5", r"mine.yaml:2: max_length: 3072.5 is a float, but int or null is needed"),
        ("bf16: 1", r"mine.yaml:2: bf16: 1 is an int, but bool or null is needed"),
        ("seed: True", r"mine.yaml:2: seed: True is a bool, but int is needed"),
        ("lora_target_modules: [1, 2]", r"mine.yaml:2: lora_target_modules"),
        ("learnig_rate: 0.1", r"mine.yaml:2: 'learnig_rate' is not a key. Did you mean 'learning_rate'"),
        ("dtype: 'float8'", r"mine.yaml:2: dtype: 'float8' is not one of auto, bfloat16"),
        ("# x\noutput_dir: a\noutput_dir: b", r"mine.yaml:4: output_dir is already set at .*mine.yaml:3"),
        ("warmup_steps: (1, 2)", r"mine.yaml:2: warmup_steps: '\(1, 2\)' is text, but float is needed"),
        ("seed:", r"mine.yaml:2: seed: None is empty, but int is needed"),
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
        (["--dataset_name", "some/set"], {"dataset": "some/set"}),
        (["--output_dir", "1"], {"output_dir": "1"}),
        (["--save_steps", "0.5"], {"save_steps": 0.5}),
    ],
)
def test_overrides(words, expected, recipe_file):
    path = recipe_file('target: "target"\ntarget_kwargs: {"eta": 0.5, "tail": "drop"}\n')
    assert {"target": "target", **expected}.items() <= read_recipe(path, words).values.items()


def test_another_target_starts_from_its_own_defaults(recipe_file):
    path = recipe_file('target: "target"\ntarget_kwargs: {"eta": 0.5}\n')
    assert "target_kwargs" not in read_recipe(path, ["--target", "sft"]).values
    assert read_recipe(path, ["--target", "target"]).values["target_kwargs"] == {"eta": 0.5}
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
        (["--eval_protocol", "avg16"], "avg16"),
    ],
)
def test_the_papers_exception_of_the_protocol_is_for_kd_and_target_sft(words, protocol):
    assert read_recipe("openr1_qwen_math_7b", words).settings.eval_protocol == protocol


def test_another_data_set_starts_from_its_own_defaults(recipe_file):
    path = recipe_file("dataset: openr1\nsample_rows: 9\ndata_dir: here\nprompt: boxed\n")
    recipe = read_recipe(path, ["--dataset_name", "other", "--data_dir", "there"])
    assert recipe.values == {"dataset": "other", "data_dir": "there", "prompt": "boxed"}
    assert recipe.set_aside == {"sample_rows": 9, "data_dir": "here"}
    assert read_recipe(path, ["--dataset", "openr1"]).settings.sample_rows == 9


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lerning_rate", "1"], "--lerning_rate: 'lerning_rate' is not a key. Did you mean 'learning_rate'"),
        (["--max_length", "long"], "--max_length: 'long' was given, but int or null is needed"),
        (["--seed", "1", "2"], "--seed: takes one value"),
        (["--seed"], "--seed: needs a value"),
        (["--prompt", "poem"], "--prompt: 'poem' is not one of question, boxed"),
        (["--num_processes", "4"], "an option of the launcher, .* --accelerate_config ddp"),
        (["oops", "--seed", "1"], "'oops' is not an option"),
    ],
)
def test_override_errors(words, message, recipe_file):
    with pytest.raises(ValueError, match=message):
        read_recipe(recipe_file("seed: 1\n"), words)


def test_packaged_recipes_are_found_by_name():
    assert find_recipe("numina_qwen_math_1p5b").name == "numina_qwen_math_1p5b.yaml"
    assert {"ddp", "zero3"} <= {file.stem for file in packaged_recipes("accelerate")}
    with pytest.raises(FileNotFoundError, match="Did you mean 'numina_qwen_math_1p5b'"):
        find_recipe("numina_qwen_math_1p5")


@given(global_batch=st.integers(1, 512), per_device=st.integers(1, 64), processes=st.integers(1, 64))
def test_split_batch_multiplies_to_the_global_batch_or_names_counts_that_work(global_batch, per_device, processes):
    try:
        batch, accumulation = split_batch(global_batch, per_device, processes)
    except ValueError as error:
        named = str(error).rsplit(": ", 1)[1].split(". ")[0].rstrip(".")
        counts = [int(count) for count in named.split(", ")]
        assert counts
        assert processes not in counts
        if "Process counts" in str(error):
            assert counts == divisors(global_batch)
        else:
            for count in counts:
                split_batch(global_batch, per_device, count)
    else:
        assert batch * accumulation * processes == global_batch
        assert batch == min(per_device, global_batch // processes)


def test_accelerate_config_becomes_an_accelerate_command():
    command = accelerate_command("zero3", ["recipes/x.yaml", "--num_processes", "4", "--seed", "1"])
    assert command[2:4] == ["accelerate.commands.accelerate_cli", "launch"]
    assert command[5].endswith("accelerate/zero3.yaml")
    assert command[6:] == ["--num_processes", "4", "-m", "qsft", "train", "recipes/x.yaml", "--seed", "1"]
    with pytest.raises(ValueError, match="one of cpu, ddp"):
        accelerate_command("zero9", [])


def test_split_words_takes_one_value_each_and_keeps_the_order():
    own, rest = split_words(["--c", "3", "r", "--a", "1", "--b=2", "x"], ("b", "c"))
    assert own == ["--c", "3", "--b=2"]
    assert rest == ["r", "--a", "1", "x"]


@pytest.mark.parametrize(
    ("words", "directory"),
    [
        ([], "runs/demo-target"),
        (["--target", "sft"], "runs/demo-sft"),
        (["--target_kwargs.eta", "0.2"], "runs/demo-target-eta0.2"),
        (["--target_kwargs", '{"eta": 1.0, "tail": "ghost"}'], "runs/demo-target-eta1.0-tailghost"),
        (["--target=kd_hybrid", "--target_kwargs.c=0.5"], "runs/demo-kd_hybrid-c0.5"),
        (["--target_kwargs.eta", "0.2", "--output_dir", "mine"], "mine"),
    ],
)
def test_runs_with_other_hyper_parameters_go_apart(words, directory):
    small = ["--model_name_or_path", "unread", "--max_steps", "1"]
    assert configure(read_recipe("demo", [*words, *small]), processes=1).args.output_dir == directory


def test_the_default_target_is_the_trainers():
    from qsft.train.config import TargetSFTConfig

    assert TargetSFTConfig.target == DEFAULT_TARGET


def test_json_written_by_a_program_is_a_recipe_too(recipe_file):
    assert read_recipe(recipe_file(json.dumps({"seed": 3}))).values == {"seed": 3}
