"""Multiple choice: the rule `boxed` on hand-written responses, `li` and `m1` against a direct implementation."""

from difflib import SequenceMatcher

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qsft.evals.grading.multiple_choice import boxed_choice, grade_choice, li_matches, score_data_set
from qsft.evals.grading.pool import grade

OPTIONS = {"A": "Aspirin", "B": "Beta blocker", "C": "Type 1", "D": "Type 10"}


@pytest.mark.parametrize(
    ("response", "chosen"),
    [
        (r"The answer is A. No: \boxed{B}", "B"),
        (r"\boxed{\text{(C) Type 1}}", "C"),
        (r"\boxed{Beta blocker}", "B"),
        ("First I thought A, but the answer is (D).", "D"),
        ("Reasoning about a thing.\n**C**", "C"),
        ("It must be type 10", "D"),
        ("It is aspirin or a beta blocker", None),
        ("A patient has a cold.", None),
    ],
)
def test_multiple_choice_boxed(response, chosen):
    graded = grade(response, "B", options=OPTIONS)
    assert graded.answer == chosen
    assert graded.correct == (chosen == "B")


@pytest.mark.parametrize(
    ("response", "chosen"),
    [
        (r"The answer is \textbf{B}", "B"),
        (r"The answer is $\mathbf{(B)}$.", "B"),
        (r"The answer is \(\text{B}\)", "B"),
        ("**Answer:** B", "B"),
        ("**Final Answer**: (B) beta", "B"),
        ("ANSWER IS: B", "B"),
        ("The answer is option B.", "B"),
        ("The correct answer is A because it is early.", "A"),
        ("Answer: A", "A"),
        ("Answer: I.", "I"),
        ("Answer: (A) clot", "A"),
        ("Final answer: a clot", None),
        ("Final answer: A clot", None),
        ("The most likely answer is a pulmonary embolism.", None),
        ("To answer a question like this", None),
        ("My answer: I would choose C.", None),
        ("The answer is B-cell lymphoma", None),
        ("The answer is B12", None),
        ("The answer isB", None),
        ("Option C can be left out", None),
    ],
)
def test_a_stated_letter_is_not_part_of_a_word(response, chosen):
    options = {letter: f"thing {letter.lower()}" for letter in "ABCDEFGHI"}
    assert boxed_choice(response, options) == chosen


@pytest.mark.parametrize(
    ("boxed", "chosen"),
    [
        (r"\boxed{\textbf{B}}", "B"),
        (r"\boxed{\mathbf{\text{B}}}", "B"),
        (r"\boxed{A clot in the lung}", "C"),
        (r"\boxed{\text{A clot in the lung.}}", "C"),
        (r"\boxed{A: Aspirin}", "A"),
        (r"\boxed{B Beta blocker}", "B"),
        (r"\boxed{(D)}", "D"),
        (r"\boxed{Option B}", "B"),
        (r"\boxed{The answer is B}", "B"),
        (r"\boxed{b}", "B"),
        (r"\boxed{(b)}", "B"),
        (r"\fbox{B}", "B"),
        (r"so \boxed{B", "B"),
        (r"so $\boxed{\text{B", "B"),
        (r"The answer is D: \boxed{A and C}", None),
        (r"\boxed{A, C}", None),
        (r"\boxed{A} and \boxed{C}", None),
        (r"\boxed{B} \boxed{B}", "B"),
        (r"\boxed{D}, that is \boxed{42}", "D"),
        (r"<think>\boxed{A}</think>\boxed{B}", "B"),
        ("Option B", "B"),
        ("b", "B"),
        ("(b).", "B"),
    ],
)
def test_what_a_box_chooses(boxed, chosen):
    options = {"A": "Aspirin", "B": "Beta blocker", "C": "A clot in the lung", "D": "Vitamin B12"}
    assert boxed_choice(boxed, options) == chosen


@pytest.mark.parametrize(
    ("response", "first", "last"),
    [
        ("The answer is B. A deficiency of iron", "B", "B"),  # step 2 goes before step 3
        ("The answer is B. No, the answer is\nC.", "B", "C"),
        ("The answer is N", "N", "N"),  # step 2 takes any letter from A to N
        ("the answer isC", "C", "C"),  # without a space too
        ("The answer is b. (C)", "C", "C"),  # a capital letter only
        ("B or C?\n## Final Response\n\nD, not A.", "D", "A"),  # only what follows the heading counts
        ("B or C?\n## Final Response\nno empty line", "B", "C"),  # the heading needs an empty line
        ("## Final Response\n\nA.\n## Final Response\n\nB.", "B", "B"),
        ("A deficiency of iron: (B)", "B", "B"),  # "A" before a space is the article
        ("A. Not B", "A", "B"),
        ("(A) and (D)", "A", "D"),
        ("C D", "C", "C"),  # a match includes its neighbors
        ("A/B", "A", "A"),
        ("选B。", "B", "B"),
        ("Vitamins B12 and D3, option C.", "C", "C"),
        ("B-cells, says C", "B", "C"),  # a hyphen is not a word character
        ("It is type 10, no, aspirin", "A", "A"),  # of step 4 both are the option furthest to the right
        ("aspirin, type 1, aspirin", "C", "A"),  # the first occurrence of C is further right than that of A
        ("It is type 1", "C", "C"),
        ("TYPE 10", "C", "C"),  # of equal positions the earlier option
        ("beta blokcer", "B", "B"),
        ("", "D", "D"),  # nothing is similar: the last of equal ones
    ],
)
def test_the_rule_of_li(response, first, last):
    assert li_matches(response, OPTIONS) == (first, last)
    graded = grade(response, last, options=OPTIONS, rule="li")
    assert graded.correct
    assert (graded.choices["first"], graded.choices["last"]) == (first, last)


def direct_li_matches(response, options):
    """The five steps, character by character: first and last match of the first step that finds anything."""
    marker = "## Final Response\n\n"
    text = response[response.rindex(marker) + len(marker) :] if marker in response else response

    found = []
    position = 0
    while position < len(text):
        if text.startswith("answer is", position):
            end = position + len("answer is")
            while end < len(text) and text[end].isspace():
                end += 1
            if end < len(text) and text[end] in "ABCDEFGHIJKLMN":
                found.append(text[end])
                position = end + 1
                continue
        position += 1
    if found:
        return found[0], found[-1]

    letters = [chr(ord("A") + index) for index in range(len(options))]

    def is_boundary(character):
        is_word = character.isalnum() or character == "_"
        return not is_word or "\u4e00" <= character <= "\u9fff"

    def end_of_match(at):
        """Where a match ends whose letter stands at this position; None if there is none."""
        if at >= len(text) or text[at] not in letters:
            return None
        if text[at] == "A" and text[at + 1 : at + 2] == " ":
            return None
        if at + 1 == len(text):
            return at + 1
        return at + 2 if is_boundary(text[at + 1]) else None

    position = 0
    while position < len(text):
        at = position
        end = end_of_match(at) if position == 0 else None
        if end is None and is_boundary(text[position]):
            at = position + 1
            end = end_of_match(at)
        if end is None:
            position += 1
        else:
            found.append(text[at])
            position = end
    if found:
        return found[0], found[-1]

    lowered = text.lower()
    occurring = [letter for letter, option in options.items() if option.lower() in lowered]
    if occurring:
        first = last = occurring[0]
        for letter in occurring[1:]:
            if lowered.find(options[letter].lower()) > lowered.find(options[first].lower()):
                first = letter
            if lowered.rfind(options[letter].lower()) > lowered.rfind(options[last].lower()):
                last = letter
        return first, last

    ratios = {letter: SequenceMatcher(None, option.lower(), lowered).ratio() for letter, option in options.items()}
    closest = [letter for letter in options if ratios[letter] == max(ratios.values())][-1]
    return closest, closest


PIECES = (
    *"ABCDEN", *"abc", " ", "  ", "\n", "\n\n", ".", ",", "(", ")", "/", "-", "_", "1", "是", "é",
    "answer is", "answer is ",
    "Answer is", "the answer is", "## Final Response", "## Final Response\n\n", "\\boxed{", "}", "aspirin", "Aspirin",
    "type 1", "type 10", "beta", "blocker", "Beta blocker",
)  # fmt: skip


@settings(max_examples=600, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), st.integers(2, 4))
def test_li_is_the_direct_implementation_of_its_five_steps(response, count):
    options = dict(list(OPTIONS.items())[:count])
    assert li_matches(response, options) == direct_li_matches(response, options)


def direct_m1_accuracy(responses, golds, options):
    """The accuracy over a data set by m1's scorer: the larger of those by the first and by the last match."""
    matches = [direct_li_matches(response, options) for response in responses]
    by_first = sum(first == gold for (first, _), gold in zip(matches, golds, strict=True))
    by_last = sum(last == gold for (_, last), gold in zip(matches, golds, strict=True))
    return max(by_first, by_last) / len(responses)


responses = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(responses, st.sampled_from("ABCD")), min_size=1, max_size=6))
def test_m1_is_the_direct_implementation_over_a_data_set(data):
    golds = [gold for _, gold in data]
    graded = [grade_choice(response, gold, OPTIONS, "m1") for response, gold in data]
    _, scored = score_data_set(graded, golds, "m1")
    accuracy = sum(grade.correct for grade in scored) / len(scored)
    assert accuracy == direct_m1_accuracy([response for response, _ in data], golds, OPTIONS)


def test_m1_scores_the_better_of_first_and_last_over_a_data_set():
    texts = ("(B), no, (A)", "(A), not (B)", "(C) (A)")
    graded = [grade(text, "A", options=OPTIONS, rule="m1") for text in texts]
    reading, scored = score_data_set(graded, ["A"] * 3, "m1")
    assert (reading, [one.correct for one in scored]) == ("last", [True, False, True])
    reading, scored = score_data_set(graded, ["B", "A", "C"], "m1")
    assert (reading, [one.answer for one in scored]) == ("first", ["B", "A", "C"])
    assert score_data_set(graded, ["B", "A", "C"], "li")[0] == "last"


def test_an_unknown_rule_is_named():
    with pytest.raises(ValueError, match=r"rule = 'first-letter' is not one of 'boxed', 'li', 'm1'"):
        grade("A", "A", options=OPTIONS, rule="first-letter")
