"""Protocols by name."""

import pytest

from qsft.evals.protocol import PROTOCOL_TITLES, PROTOCOLS, find_protocol


def test_the_papers_protocols():
    math = PROTOCOLS["paper-math"]
    openr1 = PROTOCOLS["paper-math-7b-openr1"]
    medical = PROTOCOLS["paper-medical"]
    assert (math.num_samples, math.temperature, math.top_p, math.max_new_tokens) == (16, 1.0, 1.0, 4096)
    assert math.prompt == "boxed"
    assert (openr1.num_samples, openr1.temperature, openr1.top_p) == (16, 0.7, 0.8)
    assert (medical.num_samples, medical.temperature, medical.max_new_tokens, medical.rule) == (16, 1.0, 4096, "li")
    li = PROTOCOLS["li-medical"]
    assert (li.num_samples, li.temperature, li.max_new_tokens, li.rule) == (1, 0.0, 8000, "li")
    assert PROTOCOL_TITLES.keys() == PROTOCOLS.keys()


def test_the_kind_of_task_chooses_and_single_settings_change():
    assert find_protocol(None, multiple_choice=True) == PROTOCOLS["li-medical"]
    changed = find_protocol(None, {"num_samples": 4, "seed": 7})
    assert (changed.num_samples, changed.seed, changed.temperature) == (4, 7, 1.0)
    with pytest.raises(ValueError, match=r"unknown setting 'temprature'.*temperature"):
        find_protocol(None, {"temprature": 1.0})
