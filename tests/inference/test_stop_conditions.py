"""Where a response ends: special tokens by id, other stop strings in its text."""

from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from qsft.inference.stop_conditions import StopConditions


def test_special_tokens_stop_by_id_and_everything_else_as_text(sum_tokenizer):
    stops = StopConditions(sum_tokenizer, ("so", "1 + 2", "<|eos|>"))
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
    stops = StopConditions(tokenizer, ("uestion", " Question"))
    assert stops.ids == []
    assert stops.cut([3, 0, 1, 3]) == ("aQ", 3, "stop")
    assert stops.cut([3, 2, 3]) == ("a", 2, "stop")


def test_cutting_a_long_response_decodes_a_few_prefixes(sum_tokenizer, monkeypatch):
    stops = StopConditions(sum_tokenizer, ("so",))
    calls = []
    decode = stops._decode
    monkeypatch.setattr(stops, "_decode", lambda ids: calls.append(len(ids)) or decode(ids))
    one, so = sum_tokenizer.convert_tokens_to_ids(["1", "so"])
    assert stops.cut([one] * 5000 + [so] + [one] * 20)[1:] == (5001, "stop")
    assert len(calls) < 20
