"""Evaluations for tests: results from tables of booleans, written as `evaluate` writes them."""

from qsft.evals.eval_directory import EvalDirectory, TaskSettings
from qsft.evals.grading.grade import Grade
from qsft.evals.protocol import Protocol
from qsft.evals.results import Result
from qsft.evals.tasks import Problem, Task
from qsft.inference.sampling import Generation

MODEL = {"model": "model", "context": 64, "backend": "transformers", "dtype": "float32", "reproducible": True}


def make_result(task, correct, tokens=10, lenient=False):
    """A Result from a table of booleans [problem, sample]; wrong answers are all `w` and twice as long, cut off."""
    generations = []
    grades = []
    for problem, samples in enumerate(correct):
        for sample, is_correct in enumerate(samples):
            finish = "stop" if is_correct else "length"
            length = tokens if is_correct else 2 * tokens
            generations.append(Generation(f"d{problem}", sample, "", length, finish))
            grades.append(Grade(bool(is_correct), bool(is_correct) or lenient, "r" if is_correct else "w"))
    problems = [Problem(f"d{problem}", f"question {problem}", "r") for problem in range(len(correct))]
    return Result(task, len(correct[0]), generations, grades, problems)


def task_settings(result, model="model", weights="weights", **changes):
    """The settings that `evaluate` would record for a result."""
    protocol = Protocol(num_samples=result.num_samples, **changes)
    return TaskSettings(
        model={**MODEL, "model": model},
        made_by={"model": weights},
        protocol=protocol.record(),
        task=Task(result.task).facts(),
        num_problems=len(result.problems),
    )


def write_evaluation(directory, results, model="model", weights="weights", **changes):
    """Write results as a finished evaluation; `changes` are settings of the protocol."""
    files = EvalDirectory(directory)
    for result in results:
        settings = {**files.settings(), result.task: task_settings(result, model, weights, **changes)}
        files.write_settings(settings)
        files.write_problems(result.task, result.problems)
        list(files.generations.append(result.task, (one.record() for one in result.generations)))
        files.write_grades(result.task, {one.key: grade for one, grade in zip(result.generations, result.grades)})
    return files.path
