"""Progress: plain lines without a terminal, a rate that leaves out what was done before."""

import io

import pytest
from rich.console import Console

from qsft import progress
from qsft.progress import Progress, clock


def test_plain_lines_and_a_last_one(monkeypatch):
    now = [0.0]
    out = io.StringIO()
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with Progress("t", 40, "samples", done=20, console=Console(file=out)) as shown:
        for _ in range(4):
            now[0] += 6
            shown.advance(2, text="7 tokens/s")
    assert out.getvalue().splitlines() == [
        "t: 24/40 samples, 7 tokens/s, 0:48 left",
        "t: 28/40 samples, 7 tokens/s, 0:36 left",
        "t: 28/40 samples, 7 tokens/s, 0:36 left, 0:24 in all",
    ]


def test_a_bar_on_a_terminal_and_silence_on_request(monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    terminal = io.StringIO()
    silent = io.StringIO()
    with Progress("t", 2, "steps", console=Console(file=terminal, force_terminal=True)) as shown:
        shown.advance(2)
    with Progress("t", 2, "steps", show=False, console=Console(file=silent)) as shown:
        shown.advance(2)
    assert "2/2 steps" in terminal.getvalue()
    assert silent.getvalue() == ""


def test_color_that_is_forced_makes_no_terminal_of_a_file(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    out = io.StringIO()
    with Progress("t", 2, "steps", console=Console(file=out)) as shown:
        shown.advance(2)
    assert out.getvalue() == "t: 2/2 steps, 0:00 in all\n"


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (61.4, "1:01"), (3723, "1:02:03")])
def test_clock(seconds, text):
    assert clock(seconds) == text
