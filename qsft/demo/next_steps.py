"""What to run after the demo, with the paths of this very run."""

from qsft.demo.results import BASE, Results


def next_steps(results: Results) -> list[tuple[str, str]]:
    """(command, what it does), what follows most naturally first."""
    settings, places = results.settings, results.seeds[0].places
    steps = [
        ("qsft demo --seeds 3", "the same over three seeds"),
        ("qsft demo --noise 0", "clean demonstrations: does anything beat plain SFT?"),
        ("qsft demo --wrong-teacher", "a teacher that is sure and wrong"),
        ("qsft demo --targets sft target:eta=0.2 target:eta=1.0", "any rows of the table, here η varied"),
        ("qsft targets", "every published variant as a choice of (γ, π̃)"),
        ("qsft train demo", "the same Target-SFT model from a recipe; so does accelerate launch recipes/demo.yaml"),
        (
            f"qsft explore tokens --model {places[BASE]} --teacher_cache {places['teacher cache']}",
            "every token of the demonstrations, coloured by γ",
        ),
    ]
    done = {
        "qsft demo --seeds 3": len(results.seeds) > 1,
        "qsft demo --noise 0": settings.noise == 0,
        "qsft demo --wrong-teacher": settings.wrong_teacher,
    }
    return [(command, what) for command, what in steps if not done.get(command)]
