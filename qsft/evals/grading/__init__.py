"""Grading responses: boxes, mathematical answers, multiple choice, and the processes that grade under limits."""
