"""The sampler: draws from the model's distribution, and neither batching nor order changes a sample."""

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from qsft.evals.protocol import Request, Sampling, Stops, row_key
from qsft.evals.sample import Sampler, gumbel


def requests(n=6, problems=12):
    asked = [f"{a % 10} + {a * 3 % 10} =" + " 1 +" * (a % 3) for a in range(problems)]
    return [Request(str(a), sample, prompt) for a, prompt in enumerate(asked) for sample in range(n)]


def drawn(sampler, wanted):
    return {(g.problem, g.sample): g for g in sampler.sample(wanted)}


def test_noise_is_gumbel_and_a_function_of_its_key():
    keys = torch.tensor([row_key(0, "a", 0), row_key(0, "a", 1), row_key(0, "b", 0), row_key(1, "a", 0)])
    noise = gumbel(keys, torch.full_like(keys, 3), 50_000)
    assert torch.equal(noise[1:2], gumbel(keys[1:2], torch.tensor([3]), 50_000))
    assert torch.isfinite(noise).all()
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.01)
    assert noise.var().item() == pytest.approx(torch.pi**2 / 6, abs=0.03)
    others = [noise[0], noise[1], noise[2], noise[3], gumbel(keys[:1], torch.tensor([4]), 50_000)[0], noise[0].roll(1)]
    correlation = torch.corrcoef(torch.stack(others)) - torch.eye(len(others))
    assert correlation.abs().max() < 0.02


def test_samples_follow_the_models_distribution(sum_model, sum_tokenizer):
    prompt = sum_tokenizer("5 + 7 =")["input_ids"]
    with torch.no_grad():
        expected = sum_model(torch.tensor([prompt])).logits[0, -1].div(2.0).softmax(-1)
    how = Sampling(n=4000, temperature=2.0, max_new_tokens=1, stop=())
    generations = Sampler(sum_model, sum_tokenizer, how).sample(Request("d", s, prompt) for s in range(4000))
    expected[sum_tokenizer.eos_token_id] = expected[sum_tokenizer.all_special_ids].sum()  # all decode to nothing
    counts = torch.zeros(len(expected))
    for generation in generations:
        counts[sum_tokenizer.convert_tokens_to_ids(generation.text or "<|eos|>")] += 1
    likely = expected > 0.01
    error = (expected * (1 - expected) / 4000).sqrt()
    assert ((counts / 4000 - expected).abs() < 5 * error)[likely].all()


@pytest.mark.parametrize("how", [{}, {"top_p": 0.8, "temperature": 0.7}, {"top_k": 3}])
def test_batching_and_order_do_not_change_samples(sum_model, sum_tokenizer, how):
    sampling = Sampling(n=6, max_new_tokens=12, seed=3, **how)
    wanted = requests()
    together = drawn(Sampler(sum_model, sum_tokenizer, sampling), wanted)
    assert len(together) == len(wanted)
    for size, some in ((1, wanted[::7]), (5, wanted[::-1]), (64, wanted[::-1]), (None, wanted[30:])):
        found = drawn(Sampler(sum_model, sum_tokenizer, sampling, batch_size=size), some)
        assert found == {request.key: together[request.key] for request in some}


def test_waiting_prompts_take_the_place_of_finished_rows(sum_model, sum_tokenizer, monkeypatch):
    sampling, wanted = Sampling(n=6, max_new_tokens=24, temperature=1.5, seed=1), requests()
    together = drawn(Sampler(sum_model, sum_tokenizer, sampling, batch_size=len(wanted)), wanted)
    forward, rows = type(sum_model).forward, []

    def counted(self, input_ids=None, **inputs):
        if inputs.get("past_key_values") is not None:
            rows.append(len(input_ids))
        return forward(self, input_ids=input_ids, **inputs)

    monkeypatch.setattr(type(sum_model), "forward", counted)
    assert drawn(Sampler(sum_model, sum_tokenizer, sampling, batch_size=16), wanted) == together
    useful = sum(one.tokens - 1 for one in together.values())  # the first token comes from the prefill
    longest = max(one.tokens for one in together.values())
    assert useful > 0.7 * sum(rows)  # few steps of finished rows
    assert len(rows) < useful / 16 + 2 * longest  # one batch after the other would take many more


def test_another_seed_gives_other_samples(sum_model, sum_tokenizer):
    runs = [drawn(Sampler(sum_model, sum_tokenizer, Sampling(seed=s, max_new_tokens=8)), requests()) for s in (0, 1)]
    assert runs[0] != runs[1]


def test_greedy_equals_generate(sum_model, sum_tokenizer):
    wanted = requests(n=1)
    greedy = drawn(Sampler(sum_model, sum_tokenizer, Sampling(n=1, temperature=0, max_new_tokens=10)), wanted)
    for request in wanted:
        ids = sum_tokenizer(request.prompt, return_tensors="pt")
        out = sum_model.generate(**ids, do_sample=False, max_new_tokens=10)[0, ids["input_ids"].shape[1] :]
        assert greedy[request.problem, 0].text == sum_tokenizer.decode(out, skip_special_tokens=True)
        assert greedy[request.problem, 0].tokens == len(out)


def test_the_context_limits_a_response_and_a_prompt_without_room_is_refused(sum_model, sum_tokenizer):
    sampler = Sampler(sum_model, sum_tokenizer, Sampling(n=1, max_new_tokens=500, stop=("so",)))
    assert sampler.context == 64
    long = [Request("long", 0, "1 + " * 31)]
    assert next(iter(sampler.sample(long))).tokens <= 2
    with pytest.raises(ValueError, match=r"problem big: its prompt of 64 tokens.*context of 64"):
        list(sampler.sample([Request("big", 0, "1 + " * 32)]))


def test_special_tokens_stop_by_id_and_everything_else_as_text(sum_tokenizer):
    stops = Stops(sum_tokenizer, ("so", "1 + 2", "<|eos|>"))
    eos = sum_tokenizer.convert_tokens_to_ids("<|eos|>")
    assert (stops.ids, stops.texts) == ([eos], ("so", "1 + 2"))
    ids = sum_tokenizer("4 + 1 + 2 = 3")["input_ids"]
    assert stops.cut(ids) == ("4 + ", 5, "stop")
    assert stops.cut(sum_tokenizer("4 + so 1")["input_ids"]) == ("4 + ", 3, "stop")
    assert stops.cut([ids[0], eos]) == ("4", 2, "stop")
    assert stops.cut(ids[:2]) == ("4 +", 2, "length")


def test_a_stop_string_that_is_an_ordinary_token_is_found_inside_others():
    letters = Tokenizer(models.WordLevel({"Q": 0, "uestion": 1, " Question": 2, "a": 3, "?": 4}, unk_token="?"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=letters, unk_token="?")
    tokenizer.backend_tokenizer.decoder = decoders.Fuse()
    stops = Stops(tokenizer, ("uestion", " Question"))
    assert stops.ids == []
    assert stops.cut([3, 0, 1, 3]) == ("aQ", 3, "stop")
    assert stops.cut([3, 2, 3]) == ("a", 2, "stop")


def test_cutting_a_long_response_decodes_a_few_prefixes(sum_tokenizer, monkeypatch):
    stops, calls = Stops(sum_tokenizer, ("so",)), []
    decode = stops._decode
    monkeypatch.setattr(stops, "_decode", lambda ids: calls.append(len(ids)) or decode(ids))
    one, so = sum_tokenizer.convert_tokens_to_ids(["1", "so"])
    assert stops.cut([one] * 5000 + [so] + [one] * 20)[1:] == (5001, "stop")
    assert len(calls) < 20


def test_a_stop_string_of_several_tokens_ends_the_row_wherever_it_is_noticed(sum_model, sum_tokenizer):
    sampling = Sampling(n=4, temperature=3.0, max_new_tokens=45, stop=("1 +",))
    wanted = requests(n=4, problems=6)
    together = drawn(Sampler(sum_model, sum_tokenizer, sampling), wanted)
    assert drawn(Sampler(sum_model, sum_tokenizer, sampling, batch_size=3), wanted) == together
    assert not any("1 +" in one.text for one in together.values())


def test_too_little_memory_halves_the_batch(sum_model, sum_tokenizer, monkeypatch):
    sampling = Sampling(n=6, max_new_tokens=8)
    together = drawn(Sampler(sum_model, sum_tokenizer, sampling), requests())
    forward = type(sum_model).forward

    def small(self, input_ids=None, **inputs):
        if len(input_ids) > 20:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(self, input_ids=input_ids, **inputs)

    monkeypatch.setattr(type(sum_model), "forward", small)
    assert drawn(Sampler(sum_model, sum_tokenizer, sampling), requests()) == together


def test_the_model_is_left_as_it_was(sum_model, sum_tokenizer):
    sum_model.train()
    list(Sampler(sum_model, sum_tokenizer, Sampling(max_new_tokens=2)).sample(requests(1, 1)))
    assert sum_model.training
    sum_model.eval()
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n": 0}, "n=0.*1 or more"),
        ({"temperature": -1.0}, "temperature=-1"),
        ({"top_p": 0.0}, "top_p=0"),
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"temperature": 0.0, "n": 4}, "n=4 greedy samples would all be the same"),
    ],
)
def test_wrong_settings_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**wrong)
