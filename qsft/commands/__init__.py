"""One module per command of `qsft`: arguments at the top, imports inside, the work in the rooms."""
