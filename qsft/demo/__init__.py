"""A small synthetic task that shows the paper's effect without any download."""
