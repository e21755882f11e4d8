"""The model card names the target, its formula, the teacher and the citation."""

from pathlib import Path

import yaml
from huggingface_hub import ModelCard

from qsft.targets.residual import SelfPrior
from qsft.targets.target import Target
from qsft.train.model_card import CITATION, TITLE


def read(made):
    made.create_model_card(model_name="mine")
    return Path(made.args.output_dir, "README.md").read_text()


def test_a_named_target_with_a_cached_teacher(trainer, data, tiny_model, tmp_path):
    teacher = tiny_model(seed=5)
    made = trainer(
        data.completion(), target="target_sft", teacher=teacher, teacher_cache=str(tmp_path / "c"), teacher_top_k=8
    )
    text = read(made)
    assert "target `target_sft`" in text
    assert "Q = γ·δ_y + (1−γ)·π̃" in text
    assert repr(made.target) in text
    assert "top-8" in text
    assert CITATION in text
    assert text.index("### Target distribution") < text.index("### Framework versions")
    assert "This model was trained with Target-SFT" in text  # TRL reads both from the class
    assert {"trl", "sft", "qsft"} <= set(ModelCard(text).data.tags)


def test_card_readme_and_citation_file_name_the_same_paper():
    root = Path(__file__).parents[2]
    assert f"```bibtex\n{CITATION}\n```" in (root / "README.md").read_text(encoding="utf-8")
    paper = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))["preferred-citation"]
    authors = " and ".join(f"{one['family-names']}, {one['given-names']}" for one in paper["authors"])
    assert f"author  = {{{authors}}}" in CITATION
    assert (paper["title"], paper["url"] in CITATION) == (TITLE, True)


def test_a_target_of_the_users_own(trainer, data):
    def half(view):
        return (0.5 * view.label_logp).exp()

    made = trainer(
        data.completion(), target_object=Target(half, SelfPrior()), max_steps=1, save_strategy="steps", save_steps=1
    )
    made.train()
    text = read(made)
    assert "target `custom`" in text
    assert "teacher: none" in text


def test_a_live_teacher(trainer, data, tiny_model):
    assert "`Qwen2ForCausalLM`, run live" in read(trainer(data.completion(), target="kd", teacher=tiny_model(seed=5)))
