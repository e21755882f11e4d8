"""The public names, the cost of importing them, and the front door of the command line."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import qsft
from qsft.cli import COMMANDS, build_parser, main
from qsft.commands import split_recipe

DESIGNED = [
    "TargetSFTTrainer",
    "TargetSFTConfig",
    "TeacherCollator",
    "TeacherCache",
    "build_cache",
    "Target",
    "TARGETS",
    "make_target",
    "TokenView",
    "TopK",
    "target_loss",
    "fused_target_loss",
    "induced_target",
    "evaluate",
    "grade",
]


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("name", qsft.__all__)
def test_every_public_name_resolves_and_is_documented(name):
    value = getattr(qsft, name)
    if callable(value):
        assert value.__doc__


def test_type_checkers_see_the_public_names():
    stub = Path(qsft.__file__).with_name("__init__.pyi").read_text(encoding="utf-8")
    imported = set(re.findall(r"^from (\S+) import (\S+) as", stub, re.MULTILINE))
    assert imported == {(home, name) for name, home in qsft._MODULES.items()}


def test_the_designed_names_are_public():
    assert set(DESIGNED) <= set(qsft.__all__) <= set(dir(qsft))


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(AttributeError, match="TargetSFTTrainer"):
        qsft.TargetTrainer


@pytest.mark.parametrize(
    "statement",
    [
        "import qsft",
        "from qsft.cli import build_parser; build_parser()",
        "from qsft.cli import main; main([])",
    ],
)
def test_importing_and_help_are_free(statement):
    """Neither torch nor any other heavy library is imported before a command runs."""
    heavy = "('torch', 'transformers', 'trl', 'datasets', 'numpy', 'plotly')"
    code = f"import sys\n{statement}\nprint([m for m in {heavy} if m in sys.modules])"
    result = run(code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip().endswith("[]"), result.stdout


def test_without_arguments_the_first_steps_are_shown(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    assert "qsft demo" in out
    for command in COMMANDS:
        assert command in out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_line_of_help_and_examples(command, capsys):
    parsers = next(action for action in build_parser()._actions if hasattr(action, "choices") and action.choices)
    parser = parsers.choices[command]
    help_lines = {action.dest: action.help for action in parsers._choices_actions}
    assert help_lines[command]
    text = parser.format_help()
    assert "example" in text.lower()
    assert f"qsft {command}" in text


def test_a_wrong_input_is_a_message_and_exit_code_2(capsys):
    assert main(["targets", "gemm"]) == 2
    err = capsys.readouterr().err
    assert "Did you mean 'gem'" in err
    assert "Traceback" not in err


def test_a_misspelled_command_has_a_suggestion(capsys):
    with pytest.raises(SystemExit) as error:
        main(["trian", "numina_qwen_math_1p5b"])
    assert error.value.code == 2
    assert "there is no command 'trian'. Did you mean 'train'?" in capsys.readouterr().err


def test_the_list_of_targets_fits_80_columns_and_one_target_is_shown_in_full(capsys):
    assert main(["targets"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    listed = {line.split()[0] for line in lines if line and not line.startswith((" ", "`"))}
    assert set(qsft.TARGETS) <= listed
    assert main(["targets", "target_sft"]) == 0
    assert "hyper-parameters" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["targets", "--nonsense"], ["--nonsense"]])
def test_unknown_arguments_are_an_error(words, capsys):
    with pytest.raises(SystemExit) as error:
        main(words)
    assert error.value.code == 2


@pytest.mark.parametrize(
    "words", ["plan RECIPE", "sweep RECIPE --grid target=sft", "cache build RECIPE", "explore tokens RECIPE"]
)
def test_a_key_of_a_recipe_is_never_taken_for_the_beginning_of_an_option(words):
    """argparse completes `--dataset` to `--dataset_path` unless that is switched off."""
    for key in ("--dataset", "--gpu"):
        _, rest = build_parser().parse_known_args([*words.split(), key, "value"])
        assert split_recipe(rest) == ("RECIPE", [key, "value"])


def test_version():
    result = run("from qsft.cli import main; main(['--version'])")
    assert qsft.__version__ in result.stdout
