"""Evaluation by Average@n: tasks, sampling, grading, reports, comparisons."""
