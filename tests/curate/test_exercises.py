"""Exercises: their ids, and the options that a question lists."""


def test_repeated_prompts_have_ids_of_their_own(clock_exercises):
    first, second, third = clock_exercises([(1, 2), (1, 2), (2, 2)])
    assert len({first.id, second.id, third.id}) == 3
    assert first.prompt_digest == second.prompt_digest != third.prompt_digest


def test_options_of_a_question(clock_exercises):
    exercise = clock_exercises([(1, 2)], prompt="Which?\nA. one\nB) two\n\n  (C) three", answer="B")[0]
    assert exercise.options == {"A": "one", "B": "two", "C": "three"}
    assert clock_exercises([(1, 2)])[0].options is None
