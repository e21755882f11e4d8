"""The maths: which distribution Q should the model match? Imports torch only."""
