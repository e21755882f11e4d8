"""What a grade is."""

from dataclasses import dataclass

Gold = str | int | float | list[str] | tuple[str, ...]


@dataclass(frozen=True)
class Grade:
    """The grade of one response; true when the response is correct.

    Args:
        correct: whether the answer is the gold answer.
        lenient: whether it also counts as correct by a more tolerant comparison of numbers.
        answer: the extracted answer in canonical form, which majority votes count; None if none could be extracted.
        timed_out: grading took too long or too much memory, so the response counts as wrong.
        failure: the error that grading raised; the response counts as wrong.
        choices: multiple choice only: the letter by each reading, "boxed", "first" and "last".
    """

    correct: bool
    lenient: bool = False
    answer: str | None = None
    timed_out: bool = False
    failure: str | None = None
    choices: dict[str, str | None] | None = None

    def __bool__(self) -> bool:
        return self.correct
