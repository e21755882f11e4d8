"""The model that learned its sums, with heads as wide as vLLM's CPU kernels want them."""

import clock_world
import pytest
import tiny


@pytest.fixture(scope="session")
def learned(made_once):
    def fill(directory):
        tokenizer = tiny.make_tokenizer(chat_template=None)
        model = tiny.make_model(architecture="llama", **clock_world.SHAPE, head_dim=32)
        tiny.save(directory, tiny.train(model, tokenizer, clock_world.corpus(), steps=250), tokenizer)

    return made_once("learned_wide", fill)
