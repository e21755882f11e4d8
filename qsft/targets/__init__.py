"""The mathematics: which distribution Q should the model match? Of qsft it imports validation.py only."""
