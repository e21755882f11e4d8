"""Methods that rewrite the demonstrations: a data set in, a data set out."""
