"""Each method's result follows from its definition, with a real model and the evaluator's sampler."""

import copy
from collections import defaultdict

import pytest
import torch
from sum_tasks import HINT, SUMS, TEMPLATE, UNKNOWN, solution

from qsft.curate.context import CurationInputs
from qsft.curate.critical import CriticalSettings, CriticalTokenSearch, critical
from qsft.curate.grape import GrapeSettings, grape, response_logps
from qsft.curate.reasoning_paths import reasoning_path
from qsft.curate.rft import RftSettings, rft
from qsft.curate.self_distill import SelfDistillSettings, self_distill
from qsft.curate.star import StarSettings, star
from qsft.inference.sampling import Generation

LENGTH = 14
KNOWN = [one for one in SUMS if one not in UNKNOWN]


def is_right(text, problem):
    return text.endswith(f"\\boxed{{{problem.gold}}}")


def by_problem(kept):
    found = defaultdict(list)
    for one in kept:
        found[one.exercise].append(one)
    return found


def scripted(respond):
    """A model that answers each request by a script."""

    class Script:
        def sampler(self, sampling):
            return self

        def sample(self, requests):
            return [Generation(one.problem, one.sample, respond(one), 5, "stop") for one in requests]

    return lambda path: Script()


def full_logits_logps(model, tokenizer, prompt, text):
    """The obvious computation: all logits, log-softmax, the response's and the end token's entries."""
    response = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *response]])).logits[0].double()
    logps = logits.log_softmax(-1)[len(prompt) - 1 : -1]
    return logps.gather(-1, torch.tensor(response)[:, None])[:, 0]


# RFT


def test_rft_keeps_right_and_distinct_paths_and_the_originals(clock_exercises, clock_context):
    problems = clock_exercises()
    context = clock_context()
    kept = by_problem(
        rft(problems, context, RftSettings(num_samples=8, temperature=1.0, max_new_tokens=LENGTH, keep=2))
    )
    assert set(kept) == set(problems)
    for problem, rows in kept.items():
        assert [row.origin for row in rows] == ["demonstration", *["sample"] * (len(rows) - 1)]
        assert len(rows) <= 3
        texts = [row.row["completion"].strip() for row in rows]
        assert all(is_right(text, problem) for text in texts)
        assert len({reasoning_path(text) for text in texts}) == len(texts)
    assert sum(len(rows) > 1 for rows in kept.values()) > 8
    counts = context.counts
    samples = sum(len(rows) - 1 for rows in kept.values())
    assert counts["correct"] == counts["same path as another"] + counts["beyond keep"] + samples
    assert counts["responses"] == 8 * len(problems)


def test_rft_without_originals(clock_exercises, clock_context):
    kept = rft(
        clock_exercises(KNOWN[:4]),
        clock_context(),
        RftSettings(num_samples=4, max_new_tokens=LENGTH, originals=False),
    )
    assert {one.origin for one in kept} == {"sample"}


def test_rft_never_keeps_what_was_cut_off(clock_exercises, clock_context):
    with pytest.raises(ValueError, match=r"no response of the model was correct.*16 were cut off"):
        rft(clock_exercises(KNOWN[:4]), clock_context(), RftSettings(num_samples=4, max_new_tokens=3))


# STaR


def test_star_keeps_rationales_and_hides_the_hint(clock_exercises, clock_context):
    problems = clock_exercises()
    context = clock_context()
    kept = star(problems, context, StarSettings(max_new_tokens=LENGTH, hint=HINT))
    assert {one.origin for one in kept} == {"rationale", "hinted"}
    assert len({one.exercise for one in kept}) == len(kept)
    for one in kept:
        assert is_right(one.row["completion"], one.exercise)
        assert one.row["prompt"] == one.exercise.row["prompt"]
        assert "tip" not in one.row["prompt"] + one.row["completion"]


def test_star_drops_rationales_that_mention_the_hint(clock_exercises, clock_context):
    def respond(request):
        return "hint says \\boxed{3}" if "hinted" in request.problem else "so \\boxed{9}"

    context = clock_context(load_model=scripted(respond))
    with pytest.raises(ValueError, match=r"no response of the model was correct"):
        star(clock_exercises([(1, 2)]), context, StarSettings())
    assert context.counts["gave the hint away"] == 1


@pytest.mark.parametrize(("start", "starts"), [("base", [None, None]), ("last", [None, "model-1"])])
def test_star_trains_between_rounds(start, starts, clock_exercises, clock_context):
    seen = []
    used = []

    def train(kept, model, number):
        seen.append((len(kept), model))
        return f"model-{number}"

    context = clock_context(train=train)
    load = context.load_model
    context.load_model = lambda path: used.append(path) or load()  # the names are not models
    settings = StarSettings(rounds=3, start=start, max_new_tokens=LENGTH, hint=HINT)
    star(clock_exercises(KNOWN[:3]), context, settings)
    assert [model for _, model in seen] == starts
    assert list(dict.fromkeys(used)) == [None, "model-1", "model-2"]


def test_star_needs_a_hint_with_the_answer():
    with pytest.raises(ValueError, match=r"no \{gold\}"):
        StarSettings(hint="{question} think harder")
    with pytest.raises(ValueError, match="start = 'first' is not one of 'base', 'last'"):
        StarSettings(start="first")


# GRAPE


@pytest.mark.parametrize("likelihood", ["per_token", "sequence"])
def test_grape_is_the_brute_force_likelihood(likelihood, clock_exercises, clock_context, clock_model, clock_tokenizer):
    problems = clock_exercises(SUMS[:6], short="so \\boxed{1}", many=[solution(3, 3), solution(1, 1, opener="swap")])
    kept = grape(problems, clock_context(), GrapeSettings(columns="short,many", likelihood=likelihood, batch_size=3))
    for one in kept:
        texts = [one.exercise.response, one.exercise.row["short"], *one.exercise.row["many"]]
        logps = [full_logits_logps(clock_model, clock_tokenizer, one.exercise.prompt, text) for text in texts]
        expected = [float(logp.mean() if likelihood == "per_token" else logp.sum()) for logp in logps]
        assert one.row["candidates"] == ["demonstration", "short", "many[0]", "many[1]"]
        assert one.row["scores"] == pytest.approx(expected, abs=1e-5)
        assert one.row["score"] == max(one.row["scores"])
        assert one.row["completion"].strip() == texts[expected.index(max(expected))].strip()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_grape_with_a_model_whose_logits_are_not_finite_is_an_error(value, clock_model):
    broken = copy.deepcopy(clock_model)
    with torch.no_grad():
        broken.model.norm.weight[3] = value
    with pytest.raises(ValueError, match="LlamaForCausalLM gives a response the log-probability"):
        response_logps(broken, [{"input_ids": [4, 5, 6], "labels": [-100, 5, 6]}])


def test_grape_joins_data_sets_on_the_prompt(clock_exercises, clock_context):
    problems = clock_exercises(KNOWN[:4])
    nonsense = clock_exercises(KNOWN[2:4], completion="tip tip tip")
    context = clock_context(read_dataset={"other.jsonl": nonsense}.__getitem__)
    kept = grape(problems, context, GrapeSettings(datasets="other.jsonl"))
    assert [len(one.row["candidates"]) for one in kept] == [1, 1, 2, 2]
    assert {one.origin for one in kept} == {"demonstration"}


def test_grape_leaves_out_what_does_not_fit(clock_exercises, clock_context):
    problems = clock_exercises(KNOWN[:2], long="so " * 80)
    context = clock_context()
    assert [one.row["scores"][1] for one in grape(problems, context, GrapeSettings(columns="long"))] == [None, None]
    assert context.counts["longer than the context"] == 2


def test_grape_needs_candidates(clock_exercises, clock_context):
    with pytest.raises(ValueError, match="no prompt has two candidates"):
        grape(clock_exercises(), clock_context(), GrapeSettings())
    with pytest.raises(ValueError, match=r"no column 'teacher'.*prompt, completion, answer"):
        grape(clock_exercises(), clock_context(), GrapeSettings(columns="teacher"))


# Self-distillation


def test_self_distillation_never_keeps_a_wrong_rewriting(clock_exercises, clock_context):
    problems = clock_exercises()
    context = clock_context()
    kept = self_distill(
        problems, context, SelfDistillSettings(temperature=1.5, max_new_tokens=LENGTH, template=TEMPLATE)
    )
    assert [one.exercise for one in kept] == problems
    assert {one.origin for one in kept} == {"rewritten", "demonstration"}
    for one in kept:
        assert is_right(one.row["completion"], one.exercise)
        assert one.origin == "rewritten" or one.row["completion"] == one.exercise.row["completion"]


def test_self_distillation_keeps_the_original_of_a_refusal(clock_exercises, clock_context):
    texts = ["I'm sorry, but I cannot help. \\boxed{3}", "so \\boxed{3}"]
    context = clock_context(load_model=scripted(lambda request: texts.pop(0)))
    kept = self_distill(clock_exercises([(1, 2), (2, 1)]), context, SelfDistillSettings(template=TEMPLATE))
    assert [one.origin for one in kept] == ["demonstration", "rewritten"]
    assert context.counts["refusals"] == 1


# Critical tokens


def greedy(model, tokenizer, ids):
    """Plain greedy decoding, everything computed anew at every step; the response with its end token."""
    start = len(ids)
    ids = list(ids)
    while len(ids) < 32 and (len(ids) == start or ids[-1] != tokenizer.eos_token_id):
        with torch.no_grad():
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[start:]


def brute_force(model, tokenizer, problem, response, alternatives):
    mask = []
    for at in range(len(response)):
        prefix = [*problem.prompt, *response[:at]]
        with torch.no_grad():
            likely = model(torch.tensor([prefix])).logits[0, -1].argsort(descending=True).tolist()
        others = [token for token in likely if token != response[at]][:alternatives]
        ends = [[*response[:at], token, *_rest(model, tokenizer, [*prefix, token])] for token in others]
        reached = [
            ids[-1] == tokenizer.eos_token_id and is_right(tokenizer.decode(ids, skip_special_tokens=True), problem)
            for ids in ends
        ]
        mask.append(int(not any(reached)))
    return mask


def _rest(model, tokenizer, ids):
    return [] if ids[-1] == tokenizer.eos_token_id else greedy(model, tokenizer, ids)


@pytest.mark.parametrize("of", ["greedy", "demonstration"])
def test_critical_tokens_are_the_brute_force_ones(of, clock_exercises, clock_context, clock_model, clock_tokenizer):
    problems = clock_exercises([*KNOWN[:4], *sorted(UNKNOWN)[:1]])
    kept = critical(problems, clock_context(), CriticalSettings(of=of, alternatives=2, max_new_tokens=32, batch_size=5))
    assert len(kept) >= 3
    for one in kept:
        row = one.row
        start = len(one.exercise.prompt)
        response = row["input_ids"][start:]
        if of == "greedy":
            assert response == greedy(clock_model, clock_tokenizer, one.exercise.prompt)
        assert is_right(clock_tokenizer.decode(response, skip_special_tokens=True), one.exercise)
        assert row["labels"] == [-100] * start + response
        assert row["critical"][:start] == [0] * start
        assert row["critical"][start:] == brute_force(clock_model, clock_tokenizer, one.exercise, response, 2)
    masks = [value for one in kept for value in one.row["critical"]]
    assert 0 < sum(masks) < len(masks)


def test_critical_tokens_do_not_depend_on_the_batch(clock_exercises, clock_context):
    problems = clock_exercises(KNOWN[:2])
    masks = [
        [
            one.row["critical"]
            for one in critical(problems, clock_context(f"b{size}"), CriticalSettings(alternatives=2, batch_size=size))
        ]
        for size in (1, 64)
    ]
    assert masks[0] == masks[1]


def test_branches_in_a_sliding_window_are_greedy(tiny_model, clock_exercises, clock_context, clock_tokenizer):
    model = tiny_model(use_sliding_window=True, sliding_window=4, max_window_layers=1).eval()
    context = clock_context(inputs=CurationInputs(None, None, model, clock_tokenizer))
    search = CriticalTokenSearch(context, context.greedy_sampler(12), alternatives=1)
    exercise = clock_exercises(KNOWN[:1])[0]
    starts = [[5], [5, 9, 7, 8, 6]]
    plain = [[*start, *greedy(model, clock_tokenizer, [*exercise.prompt, *start])] for start in starts]
    assert search.continue_greedily(exercise, starts) == [ids[:12] for ids in plain]
