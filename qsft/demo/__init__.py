"""A small world that shows the paper's effect without any download."""
