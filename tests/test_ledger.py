"""The ledger: nothing is computed twice, nothing is lost, every process's share is read."""

from types import SimpleNamespace

import pytest

from qsft.ledger import Ledger


def group(rank=0, count=1):
    return SimpleNamespace(rank=rank, count=count, wait=lambda: None)


def made(keys):
    return ({"problem": problem, "sample": sample, "text": f"{problem}{sample}"} for problem, sample in keys)


KEYS = [(problem, sample) for problem in "abc" for sample in range(2)]


def test_a_second_fill_computes_only_what_is_missing(tmp_path):
    ledger, asked = Ledger(tmp_path, group()), []
    for keys in (KEYS[:3], KEYS):
        found = ledger.fill("s", keys, lambda missing: made(asked.append(missing) or missing))
        assert list(found) == keys
    assert asked == [KEYS[:3], KEYS[3:]]


def test_shares_of_several_processes_become_one_file_in_order(tmp_path):
    shares = [Ledger(tmp_path, group(rank, 2)).share(KEYS) for rank in range(2)]
    assert sorted(shares[0] + shares[1]) == KEYS
    for rank, share in enumerate(shares):
        list(Ledger(tmp_path, group(rank, 2)).append("s", made(share)))
    assert [(r["problem"], r["sample"]) for r in Ledger(tmp_path, group()).settle("s", KEYS)] == KEYS
    assert [path.name for path in tmp_path.iterdir()] == ["s.jsonl"]


def test_what_is_missing_is_named(tmp_path):
    ledger = Ledger(tmp_path, group())
    list(ledger.append("s", made(KEYS[:-1])))
    with pytest.raises(ValueError, match=r"'s' has 5 of 6 samples .*problem c, sample 1 is missing"):
        ledger.settle("s", KEYS)


def test_a_torn_line_is_computed_again(tmp_path):
    ledger = Ledger(tmp_path, group())
    list(ledger.append("s", made(KEYS)))
    text = (tmp_path / "s.jsonl").read_text()
    (tmp_path / "s.jsonl").write_text(text[:-5])
    assert ledger.fill("s", KEYS, made) == {(r["problem"], r["sample"]): r for r in made(KEYS)}


def test_stages_with_odd_names_do_not_meet(tmp_path):
    ledger = Ledger(tmp_path, group(1, 2))
    for stage in ("a", "a[1]", "a*"):
        list(ledger.append(stage, made([(stage, 0)])))
    assert {stage: list(ledger.read(stage)) for stage in ("a", "a[1]", "a*")} == {
        "a": [("a", 0)], "a[1]": [("a[1]", 0)], "a*": [("a*", 0)],
    }  # fmt: skip


@pytest.mark.parametrize("name", ["../../escape", "a/b", "", ".hidden", "a.rank5", "a\nb"])
def test_names_that_leave_the_directory_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match="cannot name a file"):
        Ledger(tmp_path, group()).read(name)


def test_files_of_version_0_1_are_read(tmp_path):
    (tmp_path / "s.jsonl").write_text('{"document": "a", "sample": 0}\n')
    assert list(Ledger(tmp_path, group()).read("s")) == [("a", 0)]
    (tmp_path / "s.jsonl").write_text('{"sample": 0}\n')
    with pytest.raises(ValueError, match="no 'document'"):
        Ledger(tmp_path, group()).read("s")
