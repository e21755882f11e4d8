"""The sampler: draws from the model's distribution, and neither batching nor order changes a sample."""

import copy

import pytest
import torch

from qsft.inference.sampling import Request, Sampling
from qsft.inference.transformers_sampler import TransformersSampler


@pytest.fixture(scope="module")
def requests(sum_tokenizer):
    """Factory: some samples of prompts of three lengths."""

    def make(n=6, problems=12):
        prompts = [f"{a % 10} + {a * 3 % 10} =" + " 1 +" * (a % 3) for a in range(problems)]
        ids = [tuple(sum_tokenizer(prompt)["input_ids"]) for prompt in prompts]
        return [Request(str(a), sample, prompt) for a, prompt in enumerate(ids) for sample in range(n)]

    return make


def drawn(sampler, requested):
    return {(g.problem, g.sample): g for g in sampler.sample(requested)}


def test_samples_follow_the_models_distribution(sum_model, sum_tokenizer):
    prompt = tuple(sum_tokenizer("5 + 7 =")["input_ids"])
    with torch.no_grad():
        expected = sum_model(torch.tensor([prompt])).logits[0, -1].div(2.0).softmax(-1)
    how = Sampling(num_samples=4000, temperature=2.0, max_new_tokens=1, stop=())
    generations = TransformersSampler(sum_model, sum_tokenizer, how).sample(
        Request("d", s, prompt) for s in range(4000)
    )
    expected[sum_tokenizer.eos_token_id] = expected[sum_tokenizer.all_special_ids].sum()  # all decode to nothing
    counts = torch.zeros(len(expected))
    for generation in generations:
        counts[sum_tokenizer.convert_tokens_to_ids(generation.text or "<|eos|>")] += 1
    likely = expected > 0.01
    error = (expected * (1 - expected) / 4000).sqrt()
    assert ((counts / 4000 - expected).abs() < 5 * error)[likely].all()


@pytest.mark.parametrize("how", [{}, {"top_p": 0.8, "temperature": 0.7}, {"top_k": 3}])
def test_batching_and_order_do_not_change_samples(sum_model, sum_tokenizer, requests, how):
    sampling = Sampling(num_samples=6, max_new_tokens=12, seed=3, **how)
    requested = requests()
    together = drawn(TransformersSampler(sum_model, sum_tokenizer, sampling), requested)
    assert len(together) == len(requested)
    for size, some in ((1, requested[::7]), (5, requested[::-1]), (64, requested[::-1]), (None, requested[30:])):
        found = drawn(TransformersSampler(sum_model, sum_tokenizer, sampling, batch_size=size), some)
        assert found == {request.key: together[request.key] for request in some}


def test_waiting_prompts_take_the_place_of_finished_sequences(sum_model, sum_tokenizer, requests, monkeypatch):
    sampling = Sampling(num_samples=6, max_new_tokens=24, temperature=1.5, seed=1)
    requested = requests()
    together = drawn(TransformersSampler(sum_model, sum_tokenizer, sampling, batch_size=len(requested)), requested)
    forward = type(sum_model).forward
    rows = []

    def counted(self, input_ids=None, **inputs):
        if inputs.get("past_key_values") is not None:
            rows.append(len(input_ids))
        return forward(self, input_ids=input_ids, **inputs)

    monkeypatch.setattr(type(sum_model), "forward", counted)
    assert drawn(TransformersSampler(sum_model, sum_tokenizer, sampling, batch_size=16), requested) == together
    useful = sum(one.tokens - 1 for one in together.values())  # the first token comes from the prefill
    longest = max(one.tokens for one in together.values())
    assert useful > 0.7 * sum(rows)  # few steps of finished rows
    assert len(rows) < useful / 16 + 2 * longest  # one batch after the other would take many more


def test_another_seed_gives_other_samples(sum_model, sum_tokenizer, requests):
    runs = [
        drawn(TransformersSampler(sum_model, sum_tokenizer, Sampling(seed=s, max_new_tokens=8)), requests())
        for s in (0, 1)
    ]
    assert runs[0] != runs[1]


def test_greedy_equals_generate(sum_model, sum_tokenizer, requests):
    requested = requests(n=1)
    greedy = drawn(
        TransformersSampler(sum_model, sum_tokenizer, Sampling(num_samples=1, temperature=0, max_new_tokens=10)),
        requested,
    )
    for request in requested:
        ids = torch.tensor([request.ids])
        out = sum_model.generate(ids, do_sample=False, max_new_tokens=10)[0, ids.shape[1] :]
        assert greedy[request.problem, 0].text == sum_tokenizer.decode(out, skip_special_tokens=True)
        assert greedy[request.problem, 0].tokens == len(out)


def test_the_context_limits_a_response_and_a_prompt_that_fills_it_raises_an_error(sum_model, sum_tokenizer):
    sampler = TransformersSampler(sum_model, sum_tokenizer, Sampling(num_samples=1, max_new_tokens=500, stop=("so",)))
    assert sampler.context_length == 64
    long = [Request("long", 0, tuple(sum_tokenizer("1 + " * 31)["input_ids"]))]
    assert next(iter(sampler.sample(long))).tokens <= 2
    with pytest.raises(ValueError, match=r"the prompt of problem big has 64 tokens.*context of 64"):
        list(sampler.sample([Request("big", 0, tuple(sum_tokenizer("1 + " * 32)["input_ids"]))]))


def test_a_stop_string_of_several_tokens_ends_the_response_wherever_it_is_noticed(sum_model, sum_tokenizer, requests):
    sampling = Sampling(num_samples=4, temperature=3.0, max_new_tokens=45, stop=("1 +",))
    requested = requests(n=4, problems=6)
    together = drawn(TransformersSampler(sum_model, sum_tokenizer, sampling), requested)
    assert drawn(TransformersSampler(sum_model, sum_tokenizer, sampling, batch_size=3), requested) == together
    assert not any("1 +" in one.text for one in together.values())


def test_too_little_memory_halves_the_batch(sum_model, sum_tokenizer, requests, monkeypatch):
    sampling = Sampling(num_samples=6, max_new_tokens=8)
    together = drawn(TransformersSampler(sum_model, sum_tokenizer, sampling), requests())
    forward = type(sum_model).forward

    def small(self, input_ids=None, **inputs):
        if len(input_ids) > 20:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(self, input_ids=input_ids, **inputs)

    monkeypatch.setattr(type(sum_model), "forward", small)
    assert drawn(TransformersSampler(sum_model, sum_tokenizer, sampling), requests()) == together


def test_the_model_is_left_as_it_was(sum_model, sum_tokenizer, requests):
    sum_model.train()
    list(TransformersSampler(sum_model, sum_tokenizer, Sampling(max_new_tokens=2)).sample(requests(1, 1)))
    assert sum_model.training
    sum_model.eval()
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_logits_that_are_not_finite_are_an_error(sum_model, sum_tokenizer, requests, value, temperature):
    broken = copy.deepcopy(sum_model)
    with torch.no_grad():
        broken.model.norm.weight[3] = value
    sampler = TransformersSampler(
        broken, sum_tokenizer, Sampling(num_samples=1, temperature=temperature, max_new_tokens=4)
    )
    with pytest.raises(ValueError, match=r"logits of LlamaForCausalLM are NaN or infinite after 0 tokens"):
        list(sampler.sample(requests(n=1)))
