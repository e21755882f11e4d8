"""`python -m qsft …` and `accelerate launch -m qsft …`."""

import sys

from qsft.cli import main

if __name__ == "__main__":
    sys.exit(main())
