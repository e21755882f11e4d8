"""The complete experiment of the paper on a laptop: base and seven methods, one sweep, published numbers, a report."""

import json
import shlex

import pytest

from qsft.cli import main

METHODS = ("sft", "dft", "asft", "sft_kl", "iw_sft", "kd_hybrid", "target_sft")


@pytest.mark.slow
def test_base_and_seven_methods_are_swept_compared_with_the_paper_and_reported(
    tmp_path, local_words, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    rows = [{"problem": f"w{i} + w{i + 1} = ?", "answer": str(i)} for i in range(4)]
    (tmp_path / "math500.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["sweep", "numina_qwen_math_1p5b", "--grid", f"target=base,{','.join(METHODS)}"]
    words += ["--eval", "--tasks math500.jsonl --num_samples 2 --max_new_tokens 4", *local_words(max_steps=1)]
    assert main(words) == 0

    sweep = tmp_path / "sweeps" / "numina_qwen_math_1p5b"
    comparison = json.loads((sweep / "comparison" / "comparison.json").read_text())
    assert list(comparison["accuracy"]) == list(comparison["lenient"]) == ["base", *METHODS]
    assert comparison["paper"]["Target-SFT"]["math500"] == pytest.approx(0.702)  # found by the recipe's name
    assert not (sweep / "base").exists()  # it is shared: nothing was trained

    published = tmp_path / "published.json"
    published.write_text(json.dumps({"rows": {"SFT": {"math500": 12.5}}}))
    capfd.readouterr()
    assert main(["compare", "base", str(sweep / "target_sft"), "--paper", str(published)]) == 0
    printed = capfd.readouterr().out
    assert "| base, lenient |" in printed
    assert "| SFT (published) | 12.50 | 12.50 |" in printed

    assert main(["report"]) == 0
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    (setting,) = report["settings"].values()
    # the recipe states η, so its run is called by it
    assert set(setting["cells"]) == {"base", *METHODS[:-1], "target_sft-eta0.5"}
    assert setting["published"]["dft"] == pytest.approx(0.6579)
    assert report["missing"] == []
    state = json.loads((sweep / "sweep.json").read_text())
    assert setting["cells"]["base"]["directory"] == state["base"]["eval"]["output_dir"]
    assert shlex.split(setting["base"])[:2] == ["qsft", "eval"]
    (tmp_path / "report").rename(tmp_path / "first")

    assert main(words) == 0  # all is done: nothing is trained or drawn again
    assert main(["report"]) == 0
    assert (tmp_path / "report" / "report.md").read_text() == (tmp_path / "first" / "report.md").read_text()
