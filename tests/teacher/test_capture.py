import gc
import json
import os
import re
import resource
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from qsft.teacher.cache import TeacherCache
from qsft.teacher.capture import rendezvous, timing
from qsft.teacher.capture.capture import build_cache
from qsft.teacher.capture.plan import Plan, plan_batches
from qsft.teacher.documents import Documents, label_positions
from qsft.teacher.format.manifest import MANIFEST
from qsft.teacher.format.shards import published_shards
from qsft.teacher.identity import teacher_difference
from qsft.teacher.sources import transformers_source


@pytest.fixture
def hub_teacher(tmp_path, tiny_model, tiny_tokenizer, monkeypatch):
    """Factory: put a commit of org/teacher into a hub cache as a download does, and return the commit."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))

    def download(commit, seed=0):
        place = tmp_path / "hub" / "models--org--teacher" / "snapshots" / commit
        tiny_model(seed=seed).save_pretrained(place)
        tiny_tokenizer.save_pretrained(place)
        return commit

    return download


def test_batches_hold_all_documents_once_and_few_padding(documents):
    plan = Plan.of(Documents(documents(50)), batch_tokens=100)
    assert sorted(place for batch in plan.batches for place in batch) == list(range(len(plan.keys)))
    assert all(plan.lengths[batch].max() * len(batch) <= 100 for batch in plan.batches)
    assert plan.keys.tolist() == sorted(plan.keys.tolist())
    longest = [plan.lengths[batch].max() for batch in plan.batches]
    assert longest == sorted(longest, reverse=True)
    assert len(plan_batches(plan.lengths, 1)) == len(plan.keys)


def test_the_plan_does_not_depend_on_order_or_duplicates(documents):
    data = documents(40)
    one = Plan.of(Documents(data), 100)
    other = Plan.of(Documents([*data[::-1], *data]), 100)
    assert (one.keys == other.keys).all()
    assert [batch.tolist() for batch in one.batches] == [batch.tolist() for batch in other.batches]


def test_a_start_without_a_capture_says_where_the_cache_is(build, documents, capsys):
    data = documents(20)
    build(data)
    assert not capsys.readouterr().err
    for same in (data, data[:5]):  # remembered, and looked up
        cache = build(same, progress=True)
        assert f"teacher cache {cache.path}: {len(cache)} documents, none is missing" in capsys.readouterr().err


def test_a_finished_cache_is_not_computed_again(build, documents, tiny_model):
    data = documents(20)
    files = {path: path.stat().st_mtime_ns for path in build(data).path.iterdir()}
    model = tiny_model()
    model.model.forward = None  # calling it would fail
    assert {path: path.stat().st_mtime_ns for path in build(data, teacher=model).path.iterdir()} == files


def test_a_path_is_not_loaded_when_nothing_is_missing(build, documents, teacher, monkeypatch):
    data = documents(10)
    build(data, teacher=str(teacher))
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", None)
    build(data[:5], teacher=str(teacher))


def test_model_path_and_dataset_give_the_same_cache(build, documents, content, teacher):
    data = documents(20)
    from_model = build(data, "a")
    from_path = build(Dataset.from_list(data), "b", teacher=teacher)
    assert content(from_model, data) == content(from_path, data)
    files = from_path.manifest.identity.teacher["files"]
    assert [(f["file"], f["bytes"]) for f in files] == [
        ("model.safetensors", (teacher / "model.safetensors").stat().st_size)
    ]
    # A capture from the loaded model may continue one from its files, and the other way round.
    build(documents(5, seed=1), "b")
    build(documents(5, seed=1), "a", teacher=teacher)


def test_a_partial_capture_continues_bit_equal(build, documents, content):
    data = documents(60)
    whole = build(data, "whole", shard_bytes=1)
    part = build(data, "part", shard_bytes=1)
    for shard in published_shards(part.path)[::2]:
        shard.unlink()
    (part.path / MANIFEST).unlink()  # recovered from the shards
    resumed = build(data, "part")
    assert len(published_shards(resumed.path)) < len(published_shards(whole.path))
    assert content(resumed, data) == content(whole, data)
    assert resumed.verify().ok


def test_appended_documents_are_equal_up_to_rounding(build, documents):
    first = documents(20)
    second = documents(20, seed=1)
    whole = build([*first, *second], "whole", top_k=16)
    build(first, "grown", top_k=16)
    grown = build([*first, *second], "grown", top_k=16)
    assert len(grown) == len(whole)
    for document in [*first, *second]:
        torch.testing.assert_close(grown.lookup(**document).logps, whole.lookup(**document).logps, atol=4e-3, rtol=1e-3)


def test_two_processes_write_what_one_writes(build, documents, content, fork, tmp_path):
    data = documents(60)
    one = build(data, "one")
    children = [
        fork(lambda: build(data, "two", shard_bytes=1, patience=60), RANK=str(rank), WORLD_SIZE="2")
        for rank in range(2)
    ]
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    two = TeacherCache(tmp_path / "two")
    assert content(two, data) == content(one, data)
    assert two.verify().ok
    assert two.manifest.measured["documents"] == len(one)


def test_a_process_does_not_wait_for_a_dead_one_for_ever(build, documents, monkeypatch, tmp_path, content):
    data = documents(60)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(rendezvous, "ARRIVAL_SECONDS", 0.5)
    with pytest.raises(ValueError, match=r"probably died.*all nodes must see this directory"):
        build(data)
    held = len(TeacherCache(tmp_path / "cache"))
    assert 0 < held < len(Plan.of(Documents(data), 128).keys)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert content(build(data), data) == content(build(data, "whole"), data)


def test_two_captures_at_once_never_corrupt(build, documents, content, fork, tmp_path):
    data = documents(60)
    one = build(data, "one")
    for _ in range(2):
        children = [fork(lambda: build(data, "both", shard_bytes=1)) for _ in range(2)]
        assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
        both = TeacherCache(tmp_path / "both")
        assert content(both, data) == content(one, data)
        assert both.verify().ok
        shutil.rmtree(tmp_path / "both")


def test_captures_with_other_settings_at_once_are_rejected_not_mixed(build, documents, fork, tmp_path):
    data = documents(30)
    children = [fork(lambda k=k: build(data, "both", top_k=k)) for k in (4, 8)]
    assert sorted(os.waitpid(child, 0)[1] != 0 for child in children) == [False, True]
    assert TeacherCache(tmp_path / "both").verify().ok


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"top_k": 4}, "top_k is 8, not 4"),
        ({"cache_encoding": "compact"}, "cache_encoding is 'exact', not 'compact'"),
        ({"top_p": 0.9, "min_k": 2}, "top_p is None, not 0.9; min_k is 1, not 2"),
    ],
)
def test_other_settings_are_rejected(build, documents, options, words):
    data = documents(5)
    build(data)
    with pytest.raises(ValueError, match=f"{words}.*new directory"):
        build(documents(5, seed=1), **options)
    assert build(data).verify().ok


def test_another_teacher_is_rejected(build, documents, tiny_model, teacher, tmp_path):
    data = documents(5)
    build(data, teacher=teacher)
    with pytest.raises(ValueError, match=r"other weights than.*new directory"):
        build(data, teacher=tiny_model(seed=1))
    tiny_model(seed=1).save_pretrained(tmp_path / "other")
    with pytest.raises(ValueError, match=r"other files than.*new directory"):
        build(data, teacher=tmp_path / "other")
    with pytest.raises(ValueError, match="dtype is 'float32', not 'bfloat16'"):
        build(data, teacher=teacher, dtype="bfloat16")


def test_the_strongest_evidence_decides_whether_two_teachers_are_one():
    cached = {"name": "org/model", "revision": "a" * 40, "files": [{"digest": "f"}], "weights": "w", "config": "c"}
    unseen = {"files": [], "weights": None}
    other = {"name": "org/other", "revision": "b" * 40, "files": [{"digest": "g"}], "weights": "v"}
    assert teacher_difference(cached, other | {"weights": "w"}) is None
    assert "other weights" in teacher_difference(cached, cached | {"weights": "v"})
    assert teacher_difference(cached, other | {"weights": None, "files": cached["files"]}) is None
    assert "other files" in teacher_difference(cached, cached | {"weights": None, "files": other["files"]})
    assert teacher_difference(cached, other | unseen | {"revision": "a" * 40}) is None
    commits = f"revision {'a' * 40} of org/model, not {'b' * 40}"
    assert teacher_difference(cached, cached | unseen | {"revision": "b" * 40}) == commits
    assert teacher_difference(cached, {"name": "org/model"}) is None
    assert teacher_difference(cached, {"name": "org/other"}) == "org/model, not org/other"


def test_the_same_weights_under_another_configuration_are_another_teacher(build, documents, teacher):
    """rope_theta is in config.json alone: the weight files are the same to the last bit."""
    data = documents(5)
    build(data, teacher=teacher)
    config = json.loads((teacher / "config.json").read_text())
    theta = config["rope_parameters"]["rope_theta"]
    for cosmetic in ({"transformers_version": "4.0"}, {"use_cache": False}, {"attention_dropout": 0.5}):
        (teacher / "config.json").write_text(json.dumps(config | cosmetic))
        build(data, teacher=teacher)
    config["rope_parameters"]["rope_theta"] = 2 * theta
    (teacher / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"another configuration than.*new directory"):
        build(data, teacher=teacher)


def test_every_value_of_a_model_in_memory_counts(build, documents, tiny_model):
    data = documents(5)
    model = tiny_model()
    build(data, teacher=model)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[17, 3] += 0.25
    with pytest.raises(ValueError, match="other weights than"):
        build(data, teacher=model)


def test_a_teacher_out_of_memory_halves_its_batch_and_goes_on(build, documents, content, monkeypatch, capsys):
    data = documents(40)
    compute = transformers_source.teacher_log_probs
    sizes = []

    def small_memory(model, k, **batch):
        sizes.append(len(batch["input_ids"]))
        if sizes[-1] > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return compute(model, k, **batch)

    monkeypatch.setattr(transformers_source, "teacher_log_probs", small_memory)
    halved = build(data, "halved")
    assert "ran out of memory" in capsys.readouterr().err
    assert halved.missing(data) == []
    assert max(sizes[-5:]) <= 3  # it does not try the large batch again and again
    monkeypatch.setattr(transformers_source, "teacher_log_probs", compute)
    whole = build(data, "whole")
    for document in data:
        torch.testing.assert_close(halved.lookup(**document).logps, whole.lookup(**document).logps, atol=4e-3, rtol=0)


@pytest.mark.slow  # the test above proves the same with an error that is raised by hand
def test_a_real_shortage_of_memory_halves_the_batch_too(build, documents, tiny_model, fork, tmp_path, capfd):
    """The child may map 300 MB more; one tensor of the first batch's MLP takes about 900.

    Memory that earlier tests of this process freed counts as mapped and may be used again, but it is not as much.
    """
    data = documents(600, longest=24)
    model = tiny_model(intermediate_size=16_384)

    def capture():
        gc.collect()  # what tests before left for the collector would be room that the limit does not know
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + (300 << 20), resource.RLIM_INFINITY))
        build(data, "halved", teacher=model, batch_tokens=1 << 20)

    assert os.waitpid(fork(capture), 0)[1] == 0, capfd.readouterr().err
    assert re.search(r"ran out of memory with \d+ documents.*in \d+ parts from now on", capfd.readouterr().err)
    halved = TeacherCache(tmp_path / "halved")
    whole = build(data, "whole", teacher=model, batch_tokens=1 << 20)
    assert halved.missing(data) == []
    for document in data[:50]:
        torch.testing.assert_close(halved.lookup(**document).logps, whole.lookup(**document).logps, atol=4e-3, rtol=0)


def test_an_error_that_is_no_shortage_of_memory_is_not_hidden(build, documents, tiny_model):
    model = tiny_model()
    model.model.layers[1].forward = lambda *args, **kwargs: torch.zeros(2) @ torch.zeros(3)
    with pytest.raises(RuntimeError, match="inconsistent tensor size"):
        build(documents(3), teacher=model)


def test_one_document_that_does_not_fit_says_what_to_do(build, documents, monkeypatch):
    def no_memory(*args, **batch):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(transformers_source, "teacher_log_probs", no_memory)
    with pytest.raises(torch.OutOfMemoryError, match=r"one document of \d+ tokens does not fit"):
        build(documents(5))


def test_another_commit_with_the_same_weights_continues_the_cache(build, documents, hub_teacher):
    data = documents(5)
    first = build(data, teacher="org/teacher", revision=hub_teacher("a" * 40))
    assert first.manifest.identity.teacher["revision"] == "a" * 40
    hub_teacher("b" * 40)
    assert len(build([*data, *documents(5, seed=1)], teacher="org/teacher", revision="b" * 40)) > len(first)
    hub_teacher("c" * 40, seed=1)
    with pytest.raises(ValueError, match=r"other (files|weights) than.*new directory"):
        build(data, teacher="org/teacher", revision="c" * 40)


def test_the_identity_of_a_hub_model_has_the_commit_of_its_branch(hub_teacher, tmp_path):
    branch = tmp_path / "hub" / "models--org--teacher" / "refs" / "main"
    branch.parent.mkdir(parents=True)
    for commit in ("a" * 40, "b" * 40):
        hub_teacher(commit)
        branch.write_text(commit)
        assert transformers_source.TransformersSource("org/teacher").describe()["revision"] == commit


def test_only_another_commit_makes_the_weights_decide(build, documents, hub_teacher, monkeypatch):
    """A hub model whose weights are not downloaded yet shows its commit alone."""
    data = documents(5)
    build(data, teacher="org/teacher", revision=hub_teacher("a" * 40))
    monkeypatch.setattr("qsft.fingerprints.weight_files", lambda directory: [])
    build(data, teacher="org/teacher", revision=hub_teacher("b" * 40))
    with pytest.raises(ValueError, match="other weights than"):
        build(data, teacher="org/teacher", revision=hub_teacher("c" * 40, seed=1))


def test_a_teacher_with_another_tokenizer_than_the_data_is_rejected(build, documents, teacher, tiny_tokenizer):
    other = json.loads(tiny_tokenizer.backend_tokenizer.to_str())
    words = other["model"]["vocab"]
    words["<other>"] = words.pop(next(word for word, index in words.items() if index == 300))
    renamed = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(other)))
    with pytest.raises(ValueError, match=r"does not match the one of the teacher.*id 300 is .* and '<other>' here"):
        build(documents(5), teacher=teacher, tokenizer=renamed)
    build(documents(5))
    with pytest.raises(ValueError, match="'<other>' here"):
        build(documents(5), tokenizer=renamed)


def test_a_teacher_that_returns_nan_is_rejected_and_nothing_of_it_is_stored(build, documents, tiny_model, tmp_path):
    data = documents(30)
    model = tiny_model()
    healthy = build(data[:15], teacher=model)
    before = len(healthy)
    with torch.no_grad():
        broken = data[-1]["input_ids"][-2]
        model.model.embed_tokens.weight[broken] = torch.nan
    with pytest.raises(ValueError, match="returned NaN"):
        build(data, teacher=model, name="other")
    cache = TeacherCache(tmp_path / "other")
    assert cache.verify().ok
    assert data[-1] not in cache
    assert len(TeacherCache(healthy.path)) == before


@pytest.mark.parametrize("data", [[], [{"input_ids": [1, 2], "labels": [1, -100]}]])
def test_data_without_any_label_are_rejected(build, data):
    with pytest.raises(ValueError, match="nothing to capture"):
        build(data)


@pytest.mark.parametrize(
    "document",
    [
        {"input_ids": [5, 320], "labels": [5, 320]},
        {"input_ids": [5, 6], "labels": [5, 320]},
        {"input_ids": [-1, 6], "labels": [5, 6]},
        {"input_ids": [5, 6], "labels": [5, -7]},
    ],
)
def test_an_id_outside_the_vocabulary_is_rejected(build, documents, document):
    with pytest.raises(ValueError, match=r"token id (320|-1|-7).*320 entries"):
        build([*documents(3), document])


@pytest.mark.parametrize(
    "options", [{"top_k": 0}, {"top_k": 70_000}, {"cache_encoding": "zip"}, {"top_p": 1.5}, {"min_k": 9}]
)
def test_impossible_settings_are_rejected_before_anything_happens(build, documents, options, tmp_path):
    with pytest.raises(ValueError, match=r"invalid (top_k|cache_encoding|top_p|min_k)="):
        build(documents(3), **options)
    assert not (tmp_path / "cache").exists()


def test_k_is_at_most_the_vocabulary(build, documents, tiny_model):
    cache = build(documents(3), top_k=1000)
    assert cache.k == 320
    assert build(documents(5), top_k=1000).k == 320
    assert cache.manifest.measured["tail_mass"] == pytest.approx(0, abs=1e-5)


@pytest.fixture
def mounted(tmp_path):
    """Factory: mount something at a new directory; skips where mounting is not allowed."""
    done = []

    def mount(*options):
        place = tmp_path / f"mounted{len(done)}"
        place.mkdir()
        made = subprocess.run(["mount", *options, str(place)], capture_output=True, text=True)
        if made.returncode:
            pytest.skip(f"mount is not allowed here: {made.stderr.strip()}")
        done.append(place)
        return place

    yield mount
    for place in done:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_the_disk_is_checked_before_the_first_batch(mounted, documents, tiny_model, tiny_tokenizer):
    disk = mounted("-t", "tmpfs", "-o", "size=64k", "tmpfs")
    with pytest.raises(OSError, match=r"needs about [\d.]+ MB more; [\d.]+ MB are free"):
        build_cache(documents(100), tiny_model(), disk / "cache", tokenizer=tiny_tokenizer, progress=False)
    assert not published_shards(disk / "cache")


def test_a_disk_that_fills_up_keeps_what_was_published(mounted, documents, tiny_model, tiny_tokenizer, content, capsys):
    data = documents(100)
    disk = mounted("-t", "tmpfs", "-o", "size=192k", "tmpfs")
    options = {"tokenizer": tiny_tokenizer, "progress": False, "batch_tokens": 128, "shard_bytes": 1, "top_p": 1.0}
    with pytest.raises(OSError, match=r"no space left.*stays valid.*about [\d.]+ MB are still to be written"):
        build_cache(data, tiny_model(), disk / "cache", **options)
    cache = TeacherCache(disk / "cache")
    assert 0 < len(cache) < len(Plan.of(Documents(data), 128).keys)
    assert cache.verify().ok
    subprocess.run(["mount", "-o", "remount,size=10m", str(disk)], check=True)
    resumed = build_cache(data, tiny_model(), disk / "cache", **options)
    assert content(resumed, data) == content(build_cache(data, tiny_model(), disk / "whole", **options), data)


def test_a_read_only_directory_is_rejected_before_the_teacher_runs(
    mounted, documents, tiny_model, tiny_tokenizer, build
):
    data = documents(10)
    place = mounted("--bind", str(build(data).path))
    subprocess.run(["mount", "-o", "remount,bind,ro", str(place)], check=True)
    options = {"tokenizer": tiny_tokenizer, "progress": False, "top_k": 8}
    model = tiny_model()
    assert len(build_cache(data, model, place, **options))  # complete: nothing has to be written
    model.model.forward = None
    with pytest.raises(OSError, match=r"cannot be written.*Choose another directory"):
        build_cache(documents(5, seed=1), model, place, **options)
    with pytest.raises(OSError, match="cannot be written"):
        build_cache(data, model, place / "new", **options)


def test_temporary_files_of_a_killed_capture_are_ignored_and_tidied(build, documents, content):
    data = documents(10)
    cache = build(data)
    old, young = (cache.path / f"x.safetensors.{digit * 32}.tmp" for digit in "ab")
    foreign = cache.path / "somebody else's.tmp"
    for path in (old, young, foreign):
        path.write_bytes(b"half a shard")
    for path in (old, foreign):
        os.utime(path, (0, 0))
    assert cache.verify().ok
    build(data)
    assert not old.exists()
    assert young.exists()
    assert foreign.exists()


def test_progress_says_documents_rate_and_bytes_in_plain_lines(build, documents, capsys):
    build(documents(20), progress=True)
    line = capsys.readouterr().err.strip().splitlines()[-1]
    where = r"\d+% of the time computing, \d+% waiting for data, \d+% waiting for writes"
    assert re.search(rf"\d+/\d+ documents, [\d,]+ label tokens/s, [\d.,]+ MB; {where}, \d+:\d\d in all", line)


class SlowDisk(Documents):
    def tokens(self, index):
        time.sleep(0.05)
        return super().tokens(index)


def test_a_capture_that_waits_for_its_data_says_what_to_do(build, documents, capsys, monkeypatch):
    monkeypatch.setattr(timing, "FIRST_REPORT", 0.2)
    build(SlowDisk(documents(25)), progress=True)
    output = re.findall(
        r"slow capture: (\d+)% of the time is waiting for data. Keep the prepared", capsys.readouterr().err
    )
    assert output
    assert all(int(share) > 33 for share in output)


def test_a_capture_that_waits_for_the_disk_says_what_to_do(build, documents, capsys, monkeypatch):
    monkeypatch.setattr(timing, "FIRST_REPORT", 0.2)
    monkeypatch.setattr("qsft.files.os.fsync", lambda handle: time.sleep(0.3))
    build(documents(8), progress=True, shard_bytes=1)
    assert re.search(
        r"\d+% of the time is waiting for writes. Put the cache .* on a faster disk", capsys.readouterr().err
    )
    assert build(documents(8)).verify().ok


def test_advice_follows_from_where_the_time_goes(build, documents, capsys):
    times = timing.WaitingTimes(lambda: "use a GPU")
    assert times.advice(100) == ["use a GPU"]
    assert timing.WaitingTimes(lambda: None).advice(100) == []
    times.seconds |= {"data": 40.0, "writes": 50.0}
    assert [line[:30] for line in times.advice(100)] == [
        "50% of the time is waiting for",
        "40% of the time is waiting for",
    ]
    assert times.summary(100) == "10% of the time computing, 40% waiting for data, 50% waiting for writes"
    for seconds in (10, 59, 61, 62, 100):
        times.report(seconds)
    times.report(120, finished=True)
    lines = capsys.readouterr().err.splitlines()
    assert [line[:17] for line in lines] == ["slow capture: 82%", "slow capture: 66%", "slow capture: 42%"]
    build(documents(5), progress=True)
    assert "slow capture" not in capsys.readouterr().err  # shorter than a minute


def test_a_transformers_teacher_advises_by_its_device(tiny_model, monkeypatch):
    source = transformers_source.TransformersSource(tiny_model())
    assert "computes on a CPU" in source.advice()
    monkeypatch.setattr(transformers_source, "input_device", lambda model: torch.device("cuda"))
    for used, expected in ((0.1, "10% of its GPU's memory. Raise teacher_batch_tokens"), (0.8, None)):
        monkeypatch.setattr(transformers_source, "memory_share", lambda device, used=used: used)
        advice = source.advice()
        assert advice is None if expected is None else expected in advice


def test_dropout_is_off_while_a_model_in_training_teaches(build, documents, content, tiny_model):
    data = documents(10)
    model = tiny_model(attention_dropout=0.5).train()
    assert content(build(data, "training", teacher=model), data) == content(build(data, "evaluating"), data)
    assert model.training


def test_the_manifest_tells_what_was_measured(build, documents):
    data = documents(30)
    cache = build(data, top_k=8)
    measured = cache.manifest.measured
    log_probs = [cache.lookup(**d) for d in data]
    assert measured["label_tokens"] == sum(len(label_positions(d["labels"])) for d in data)
    assert measured["bytes_per_label_token"] == 5 + 8 * (9 / 8 + 2)
    assert measured["mean_k"] == 8
    tail = torch.cat([1 - r.logps.double().exp().sum(dim=1) for r in log_probs]).mean()
    assert measured["tail_mass"] == pytest.approx(tail.item(), rel=1e-3)
    assert 0 < measured["encoding_max_error"] < 4e-3
    assert 0 <= measured["encoding_kl"] < 1e-5
    assert measured["bytes"] == sum(path.stat().st_size for path in published_shards(cache.path))


def test_dtype_and_revision_among_the_model_kwargs_win(build, documents, teacher):
    kwargs = {"torch_dtype": "bfloat16", "revision": "main"}
    cache = build(documents(3), teacher=teacher, dtype="float32", model_kwargs=kwargs)
    assert cache.manifest.identity.dtype == "bfloat16"
    assert cache.manifest.identity.teacher["revision"] == "main"
    with pytest.raises(ValueError, match="dtype is 'bfloat16', not 'float16'"):
        build(documents(3), teacher=teacher, model_kwargs={"dtype": "float16"})
    build(documents(3), "automatic", teacher=teacher, model_kwargs={"dtype": "auto"})


def test_weights_without_a_tokenizer_are_a_teacher(build, documents, tiny_model, tmp_path):
    tiny_model().save_pretrained(tmp_path / "weights")
    assert len(build(documents(3), teacher=tmp_path / "weights"))


def test_a_head_with_fewer_entries_than_the_tokenizer_has_tokens_is_rejected(build, documents, tiny_model, tmp_path):
    with pytest.raises(ValueError, match=r"head of the teacher Qwen2ForCausalLM has 200 entries.*320 tokens"):
        build(documents(3, vocab_size=200), teacher=tiny_model(vocab_size=200))


def test_a_data_set_that_is_not_tokenized_raises_an_error(build):
    for data in ([{"text": "w1 w2"}], Dataset.from_list([{"text": "w1 w2"}])):
        with pytest.raises(ValueError, match="has the columns text, but not input_ids"):
            build(data)


def test_batches_without_tokens_raise_an_error(build, documents):
    with pytest.raises(ValueError, match="batch_tokens = 0"):
        build(documents(2), batch_tokens=0)
