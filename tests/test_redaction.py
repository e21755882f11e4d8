"""Secrets are used as they are and written as <redacted>."""

import copy
import json
import pickle

import pytest

from qsft.files import write_json
from qsft.redaction import REDACTED, Secret, is_secret_name, protect, redact, redact_text, redact_words

TOKEN = "hf_aVeryDistinctiveToken1"


@pytest.mark.parametrize("name", ["hub_token", "token", "use_auth_token", "push_to_hub_token", "api_key", "password"])
def test_names_of_secrets(name):
    assert is_secret_name(name)
    assert is_secret_name(f"--{name.replace('_', '-')}")


@pytest.mark.parametrize("name", ["eos_token", "pad_token", "max_new_tokens", "teacher_batch_tokens", "token_type_ids"])
def test_names_of_tokens_of_text(name):
    assert not is_secret_name(name)


def test_a_secret_is_usable_and_copied_but_never_shown_or_pickled():
    settings = protect({"model_init_kwargs": {"token": TOKEN}, "seed": 1})
    token = settings["model_init_kwargs"]["token"]
    assert isinstance(token, Secret)
    assert f"Bearer {token}" == f"Bearer {TOKEN}"
    assert copy.deepcopy(settings)["model_init_kwargs"]["token"] == TOKEN
    assert TOKEN not in repr(settings)
    assert TOKEN.encode() not in pickle.dumps(settings)
    assert TOKEN not in json.dumps(redact(settings))


def test_values_are_replaced_wherever_they_appear(tmp_path):
    protect({"hub_token": TOKEN})
    assert redact_text(f"https://user:{TOKEN}@host") == f"https://user:{REDACTED}@host"
    write_json(tmp_path / "record.json", {"url": f"https://{TOKEN}@host"})
    assert TOKEN not in (tmp_path / "record.json").read_text()
    words = ["--hub_token", TOKEN, f"--model_init_kwargs.token={TOKEN}", f'--model_init_kwargs={{"token": "{TOKEN}"}}']
    assert TOKEN not in " ".join(redact_words(words))
