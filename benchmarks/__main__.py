"""`make bench`: head, training step, cache, grading. Names run only some of them: `python -m benchmarks head`."""

import argparse
from importlib import import_module

BENCHES = ("head", "step", "cache", "grading")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=BENCHES, help=f"any of {', '.join(BENCHES)}; all by default")
    for name in parser.parse_args().names:
        import_module(f"benchmarks.bench_{name}").main([])


if __name__ == "__main__":
    main()
