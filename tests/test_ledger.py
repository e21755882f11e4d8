"""The ledger: nothing is computed twice, nothing is lost, every process's share is read."""

import json
from types import SimpleNamespace

import pytest

from qsft.ledger import Ledger, changed_settings, move_aside, seal


def group(rank=0, count=1):
    return SimpleNamespace(rank=rank, count=count, wait=lambda: None)


def made(keys):
    return ({"problem": problem, "sample": sample, "text": f"{problem}{sample}"} for problem, sample in keys)


KEYS = [(problem, sample) for problem in "abc" for sample in range(2)]


def test_a_second_fill_computes_only_what_is_missing(tmp_path):
    ledger = Ledger(tmp_path, group())
    requested = []
    for keys in (KEYS[:3], KEYS):
        found = ledger.fill("s", keys, lambda missing: made(requested.append(missing) or missing))
        assert list(found) == keys
    assert requested == [KEYS[:3], KEYS[3:]]


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


def test_an_incomplete_line_is_computed_again(tmp_path):
    ledger = Ledger(tmp_path, group())
    list(ledger.append("s", made(KEYS)))
    text = (tmp_path / "s.jsonl").read_text()
    (tmp_path / "s.jsonl").write_text(text[:-5])
    assert ledger.fill("s", KEYS, made) == {(r["problem"], r["sample"]): seal(r) for r in made(KEYS)}


def test_stages_with_odd_names_do_not_meet(tmp_path):
    ledger = Ledger(tmp_path, group(1, 2))
    for stage in ("a", "a[1]", "a*"):
        list(ledger.append(stage, made([(stage, 0)])))
    assert {stage: list(ledger.read(stage)) for stage in ("a", "a[1]", "a*")} == {
        "a": [("a", 0)], "a[1]": [("a[1]", 0)], "a*": [("a*", 0)],
    }  # fmt: skip


@pytest.mark.parametrize("name", ["../../escape", "a/b", "", ".hidden", "a.rank5", "a\nb"])
def test_names_that_leave_the_directory_raise(tmp_path, name):
    with pytest.raises(ValueError, match="cannot name a file"):
        Ledger(tmp_path, group()).read(name)


def test_a_damaged_record_and_one_without_a_key_are_named(tmp_path):
    ledger = Ledger(tmp_path, group())
    list(ledger.append("s", made(KEYS)))
    file = tmp_path / "s.jsonl"
    whole = file.read_text()
    file.write_text(whole.replace("b1", "b7", 1))
    with pytest.raises(ValueError, match=r"s.jsonl: record 4 is damaged"):
        ledger.read("s")
    file.write_text(json.dumps(seal({"sample": 0})) + "\n")
    with pytest.raises(ValueError, match="a record has no 'problem'"):
        ledger.read("s")


def test_existing_and_new_records_are_observed(tmp_path):
    ledger = Ledger(tmp_path, group())
    list(ledger.append("s", made(KEYS[:2])))
    existing = []
    new = []
    ledger.fill("s", KEYS, made, on_existing=existing.append, on_new=new.append)
    assert [one["text"] for one in existing] == ["a0", "a1"]
    assert [one["text"] for one in new] == ["b0", "b1", "c0", "c1"]


def test_changed_settings_are_named_unless_they_are_allowed():
    recorded = {"seed": 0, "model": "a", "extra": 1}
    assert changed_settings(recorded, {"seed": 1, "model": "a", "n": 2}, allowed=["n"]) == ["seed was 0, is 1"]
    assert changed_settings(recorded, {"n": 2}) == ["n was None, is 2"]


def test_old_work_is_moved_aside_and_never_deleted(tmp_path):
    work = tmp_path / "run"
    for number in (1, 2):
        (work / "generations").mkdir(parents=True, exist_ok=True)
        (work / "generations" / "s.jsonl").write_text(str(number))
        moved = move_aside(work, [work / "generations" / "s.jsonl", work / "missing"])
        assert moved == tmp_path / "run.previous" / str(number)
        assert (moved / "generations" / "s.jsonl").read_text() == str(number)
    assert move_aside(work, [work / "missing"]) is None


def test_two_commands_do_not_fill_one_directory_at_once(tmp_path, held_elsewhere):
    ledger = Ledger(tmp_path, group())
    with held_elsewhere(tmp_path), pytest.raises(ValueError, match="another process is writing"):
        ledger.fill("s", KEYS, made)
    assert list(ledger.fill("s", KEYS, made)) == KEYS
