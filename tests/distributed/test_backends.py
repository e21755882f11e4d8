"""One process, DDP, ZeRO-2, ZeRO-3, FSDP2 and two nodes train the same: real processes on gloo, one launch each."""

import importlib.util
import itertools

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from qsft.train.checkpoints import list_checkpoints

pytestmark = pytest.mark.distributed

SAVED = {"save": True, "steps": 4}
STUDENTS = {"untied": {"model": "untied"}, "tied": {"model": "tied"}, "lora": {"model": "untied", "lora": True}}
MATRIX = [
    {"name": f"{target}-{student}", "target": target, **how, **(SAVED if target == "target_sft" else {})}
    for target in ("target_sft", "sft", "iw_sft", "gem")
    for student, how in STUDENTS.items()
]
# A target with a teacher on each student; without one, with whole documents and with the whole tile on one each.
TRIED = ("target_sft-untied", "target_sft-tied", "target_sft-lora", "sft-lora", "iw_sft-tied", "gem-untied")
CASES = [case for case in MATRIX if case["name"] in TRIED]
REST = [case for case in MATRIX if case["name"] not in TRIED]
CASES += [
    {"name": "psft", "target": "psft", "model": "untied"},  # scores batches with the wrapped student
    {"name": "live", "target": "target_sft", "model": "untied", "teacher": "live"},
    {
        "name": "dispatched",
        "target": "target_sft",
        "model": "untied",
        "dispatched": True,
    },  # by one process to the others
    {"name": "streamed", "target": "target_sft", "model": "untied", "streamed": True},
    {"name": "built", "target": "target_sft", "model": "untied", "teacher": "built"},  # the cache, by all processes
    {"name": "bf16", "target": "target_sft", "model": "untied", "bf16": True},
]
# What recipes do: float32 weights, bf16 autocast and their learning rate; float32 throughout is the measure.
SMALL_STEPS = {"target": "target_sft", "model": "untied", "learning_rate": 5e-5, "adam_epsilon": 1e-8}
CASES += [
    {"name": "small_steps-bf16", "bf16": True, **SMALL_STEPS},
    {"name": "small_steps-float32", **SMALL_STEPS},
    # Weights in bf16 lose small updates: the control that shows the measure works.
    {"name": "small_steps-pure_bf16", "bf16": True, "dtype": "bfloat16", **SMALL_STEPS},
]
MEASURED = [case["name"] for case in CASES if case["name"].startswith("small_steps")]
EXACT = [case["name"] for case in CASES if "bf16" not in case and "learning_rate" not in case]
RESUMED = [
    {**case, "name": f"{case['name']}-resumed", "resumes": case["name"]}
    for case in CASES
    if case["name"] in ("target_sft-untied", "target_sft-lora")
]
WHOLE = ["ddp", "zero3", "fsdp2"]
NARROW = ["two_nodes", "zero2"]  # what a second launcher and ZeRO's second stage could break
FEW = ["target_sft-untied", "target_sft-tied", "target_sft-lora", "psft", "bf16", *MEASURED]


def quick_with_ddp(*cases):
    """The same proof with DDP in `make test`, with the other backends among the slow tests."""
    return [pytest.param(*case, marks=() if case[0] == "ddp" else pytest.mark.slow) for case in cases]


BACKENDS = quick_with_ddp(*((backend,) for backend in (*WHOLE, *NARROW)))
PAIRS = quick_with_ddp(*((b, c) for b in (*WHOLE, *NARROW) for c in EXACT if b in WHOLE or c in FEW))


@pytest.fixture(scope="module")
def trained(launch):
    """trained(backend): the run of all cases there, started when first asked for."""
    runs = {}

    def of(backend):
        if backend.startswith("zero") and importlib.util.find_spec("deepspeed") is None:
            pytest.skip("deepspeed is not installed")
        if backend not in runs:
            few = backend in NARROW
            cases = [case for case in CASES if case["name"] in FEW] if few else [*CASES, *RESUMED]
            runs[backend] = launch(backend, cases)
        return runs[backend]

    return of


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_processes_took_part_in_the_wrapper_that_was_asked_for(trained, backend):
    _, ranks = trained(backend)
    assert len(ranks) == 2
    wrapper = {"fsdp2": "FSDPModule", "zero2": "DeepSpeedEngine", "zero3": "DeepSpeedEngine"}
    for ran in (case for rank in ranks for case in rank.values() if isinstance(case, dict)):
        assert ran["world_size"] == 2
        assert wrapper.get(backend, "DistributedDataParallel") in ran["classes"]
        assert ran["zero_stage"] == {"zero2": 2, "zero3": 3}.get(backend)
        assert ran["sharded_by_fsdp2"] == (backend == "fsdp2")


@pytest.mark.parametrize(("backend", "case"), PAIRS)
def test_logs_what_one_process_logs(trained, backend, case):
    [alone] = trained("single")[1]
    for rank in trained(backend)[1]:
        for name in ("loss", "grad_norm", "label_loss", "gamma", "entropy", "mean_token_accuracy"):
            assert rank[case][name] == pytest.approx(alone[case][name], rel=1e-5), name
        assert rank[case]["num_tokens"] == alone[case]["num_tokens"]


@pytest.mark.slow
@pytest.mark.parametrize("backend", WHOLE)
def test_the_other_pairs_of_target_and_student_too(launch, backend):
    [alone], ranks = launch("single", REST)[1], launch(backend, REST)[1]
    assert len(ranks) == 2
    for case, name in itertools.product((case["name"] for case in REST), ("loss", "grad_norm", "gamma", "entropy")):
        for rank in ranks:
            assert rank[case][name] == pytest.approx(alone[case][name], rel=1e-5), (case, name)


@pytest.mark.parametrize("backend", BACKENDS)
def test_bf16_rounds_neither_the_teacher_nor_the_loss(trained, backend):
    [alone] = trained("single")[1]
    ranks = [rank["bf16"] for rank in trained(backend)[1]]
    # What the head decoded, added up in float64. Log-probs rounded to bf16 on the way in are off by 6e-5 of it.
    assert sum(rank["teacher_mass"] for rank in ranks) == pytest.approx(alone["built"]["teacher_mass"], rel=1e-9)
    for rank in ranks:
        assert rank["loss"] == pytest.approx(alone["bf16"]["loss"], rel=5e-4)
        losses = torch.tensor(rank["loss"])
        assert not torch.equal(losses, losses.bfloat16().float())


@pytest.mark.parametrize("backend", BACKENDS)
def test_float32_weights_under_bf16_autocast_keep_small_updates_and_agree_with_one_process(trained, backend):
    alone_folder, [alone] = trained("single")
    folder, ranks = trained(backend)
    expected = load_file(alone_folder / "small_steps-bf16" / "weights.safetensors")
    for rank in ranks:
        float32 = rank["small_steps-float32"]["unchanged_after_one_step"]
        autocast = rank["small_steps-bf16"]["unchanged_after_one_step"]
        assert autocast == pytest.approx(float32, abs=0.02)
        assert autocast == pytest.approx(alone["small_steps-bf16"]["unchanged_after_one_step"], abs=0.02)
        assert rank["small_steps-bf16"]["loss"] == pytest.approx(alone["small_steps-bf16"]["loss"], rel=5e-4)
    weights = load_file(folder / "small_steps-bf16" / "weights.safetensors")
    assert weights.keys() == expected.keys()
    for name, mine in weights.items():
        if name.endswith("k_proj.bias"):
            continue  # attention does not depend on it: its gradient is rounding, and Adam magnifies that
        assert mine.dtype == torch.float32
        assert not torch.equal(mine, mine.bfloat16().float()), name
        # Three steps of Adam move a weight by at most about 3 * 5e-5; rounding turns the sign of a few tiny gradients.
        differs = (mine - expected[name]).abs()
        assert differs.mean() < 0.1 * 5e-5, name
        assert differs.max() < 4 * 2 * 5e-5, name


def test_weights_in_bf16_lose_small_updates(trained):
    for rank in trained("ddp")[1]:
        lost = rank["small_steps-pure_bf16"]["unchanged_after_one_step"]
        assert lost > rank["small_steps-bf16"]["unchanged_after_one_step"] + 0.2


@pytest.mark.parametrize("case", ["target_sft-untied", "target_sft-tied"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_final_model_loads_in_plain_transformers_and_is_that_of_one_process(trained, backend, case):
    alone = AutoModelForCausalLM.from_pretrained(trained("single")[0] / case)
    model, report = AutoModelForCausalLM.from_pretrained(trained(backend)[0] / case, output_loading_info=True)
    assert not any(report.values())
    for (name, mine), expected in zip(model.state_dict().items(), alone.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, expected, rtol=0, atol=2e-6, msg=name)


@pytest.mark.parametrize("backend", quick_with_ddp(*((backend,) for backend in WHOLE)))
def test_a_resumed_run_is_the_unbroken_one(trained, backend):
    folder, ranks = trained(backend)
    for again, case in ((case["name"], case["resumes"]) for case in RESUMED):
        for rank in ranks:
            for name in ("loss", "grad_norm", "num_tokens"):
                assert rank[again][name] == rank[case][name], name
        [file] = (path.name for path in (folder / case).glob("*model.safetensors"))
        mine, unbroken = load_file(folder / again / file), load_file(folder / case / file)
        assert mine.keys() == unbroken.keys()
        assert all(torch.equal(mine[name], unbroken[name]) for name in mine)


def test_a_model_in_memory_that_fsdp_left_empty_is_refused_in_every_process(trained):
    for rank in trained("ddp")[1]:
        assert len(rank["empty_copies"]) == 2
        for error in rank["empty_copies"]:
            assert "not the same model in every process" in error
            assert "name or path" in error


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["ddp"])
def test_a_rank_killed_inside_a_save_leaves_a_run_that_resumes_bit_for_bit(launch, backend):
    case = next(case for case in CASES if case["name"] == "target_sft-untied")
    unbroken, _ = launch(backend, [case])
    folder, ranks = launch(backend, [{**case, "dies": "1"}], fails=True)
    assert not ranks
    out = folder / case["name"]
    assert [one.path.name for one in list_checkpoints(out) if not one.problems()] == ["checkpoint-2"]
    launch(backend, [{**case, "checkpoint": "last"}], folder)
    mine, other = (load_file(place / case["name"] / "model.safetensors") for place in (folder, unbroken))
    assert all(torch.equal(mine[name], other[name]) for name in other)
    print(f"{backend}: one of two processes killed inside a save; resumed from checkpoint-2, equal to the unbroken run")
