"""Wrong paths and damaged files end every command with an error message and exit code 2, without a traceback."""

import json

import jaxtyping
import pytest

from qsft.cli import main


@pytest.fixture
def folder(tiny_files, tmp_path, monkeypatch):
    """A file and a directory to give where the other is needed, and a run whose records are empty objects."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "afile").write_text("")
    (tmp_path / "adir").mkdir()
    checkpoint = tmp_path / "broken" / "checkpoint-2"
    checkpoint.mkdir(parents=True)
    for file in (checkpoint / "run.json", checkpoint / "trainer_state.json", tmp_path / "broken" / "run.json"):
        file.write_text("{}")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("sweep.json", "manifest.json", "recipe.json"):
        (tmp_path / name).write_text("[]")
    documents = [{"input_ids": [4, 5, 6], "labels": [-100, 5, 6]}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in documents))
    (tmp_path / "task.jsonl").write_text('{"problem": "w1", "answer": "1"}\n')
    return tmp_path


CASES = [
    ("train TINY --output_dir afile", "afile"),
    ("train TINY --output_dir afile/inside", "afile"),
    ("train TINY --teacher_cache afile", "afile"),
    ("train TINY --output_dir broken", "checkpoints of another run"),
    ("train TINY --output_dir broken --resume_from_checkpoint last", "broken"),
    ("train TINY --output_dir run --target sft --resume_from_checkpoint broken/checkpoint-2", "checkpoint-2"),
    ("train TINY --output_dir run --target sft --resume_from_checkpoint nosuch", "nosuch"),
    ("train TINY --eta half --dry_run", "eta = 'half' is not a number"),
    ("train TINY --tail 3 --dry_run", "tail = 3 is not one of"),
    ("train adir", "there is no recipe 'adir'"),
    ("train afile --dry_run", "a recipe is a list"),
    ("sweep TINY --grid target=sft --output_dir afile", "afile"),
    ("sweep TINY --grid target=sft --output_dir .", "sweep.json"),
    ("cache build --dataset_path rows.jsonl --teacher {files}/teacher --output_dir afile", "afile"),
    ("cache build --dataset_path afile --teacher {files}/teacher --output_dir cache", "afile"),
    ("cache info adir", "adir"),
    ("cache info afile", "afile"),
    ("cache info .", "manifest.json"),
    ("cache verify afile", "afile"),
    ("eval . --tasks rows.jsonl", "recipe.json"),
    ("eval {files}/student --tasks task.jsonl --output_dir afile", "afile"),
    ("eval {files}/student --tasks nosuch.jsonl", "nosuch.jsonl"),
    ("compare afile adir", "afile"),
    ("curate self_distill TINY --output_dir afile", "afile"),
    ("train TINY --target sft --output_dir {long}", "which is too long"),
    ("eval {files}/student --tasks task.jsonl --output_dir {long}", "which is too long"),
    ("explore run {long} --output_file curves.html", "which is too long"),
    ("explore run broken --output_file curves.html", "broken"),
    ("train TINY --target sft --output_dir run\udcff", "is not UTF-8"),
    ("eval {files}/student --tasks task\udcff.jsonl", "is not UTF-8"),
    ("train TINY --target sft --output_dir loop", "loop"),
    ("train TINY --target sft --learning_rate 1e30 --max_steps 4 --output_dir nan", "NaN or infinite in"),
    ("explore run afile --output_file curves.html", "afile"),
    ("explore tokens TINY --num_documents 1 --output_file adir", "adir"),
]


@pytest.mark.parametrize(("command", "named"), CASES, ids=[command[:60] for command, _ in CASES])
def test_the_message_names_the_path(command, named, folder, tiny_files, local_words, capfd, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for users, types are not checked
    tiny = " ".join(["numina_qwen_math_1p5b", *local_words(report_to="none", max_steps=1)])
    assert main(command.format(files=tiny_files, long="x" * 300).replace("TINY", tiny).split()) == 2
    message = capfd.readouterr().err
    assert named in message.rsplit("qsft: ", 1)[1]
    assert "Traceback" not in message
