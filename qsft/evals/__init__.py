"""Average@n one can trust: tasks, sampling, grading, reports."""
