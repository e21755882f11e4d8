"""Take PNG pictures of pages with a headless Chromium: python tools/take_pictures.py PAGE… --output_dir DIR."""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
QUIET_FLAGS = (  # without a window, a GPU and requests of the browser's own
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
FLAGS = (
    *QUIET_FLAGS,
    "--hide-scrollbars",
    "--force-device-scale-factor=2",
    "--virtual-time-budget=15000",  # the page unpacks and draws itself before the picture is taken
)


def find_browser() -> str | None:
    """The path of an installed Chromium or Chrome."""
    for name in BROWSERS:
        path = shutil.which(name)
        if path is not None:
            return path
    return None


def take_picture(page: str | Path, png: str | Path, *, width: int = 1280, height: int = 900, at: str = "") -> Path:
    """A PNG of the top of a page; `at` is a fragment of the page, such as "token-12" of the X-ray."""
    browser = find_browser()
    if browser is None:
        raise FileNotFoundError(f"no browser was found to take the picture with. Install one of {', '.join(BROWSERS)}.")
    address = Path(page).resolve().as_uri() + (f"#{at}" if at else "")
    png = Path(png)
    png.parent.mkdir(parents=True, exist_ok=True)
    png.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as profile:
        command = [browser, *FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"]
        done = subprocess.run(
            [*command, f"--screenshot={png.resolve()}", address], capture_output=True, text=True, timeout=180
        )
    if not png.is_file():
        raise OSError(f"{browser} took no picture of {page}: {done.stderr.strip()[-400:]}")
    return png


def main(argv: Sequence[str] | None = None) -> int:
    """Take a picture of every page given, as FILE.png, or of FILE.html#FRAGMENT."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="+", metavar="PAGE", help="an HTML file, or FILE.html#FRAGMENT")
    parser.add_argument("--output_dir", default=".", metavar="DIR", help="where the PNGs go (default: here)")
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=900)
    args = parser.parse_args(argv)
    for page in args.pages:
        file, _, at = page.partition("#")
        size = {"width": args.width, "height": args.height}
        print(take_picture(file, Path(args.output_dir) / f"{Path(file).stem}.png", at=at, **size))
    return 0


if __name__ == "__main__":
    sys.exit(main())
