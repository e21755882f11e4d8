"""`python -m qsft …` and `accelerate launch -m qsft …`."""

from qsft.cli import command

if __name__ == "__main__":
    command()
