"""Make the pictures of the documentation anew, from the demo trace.

`python docs/scripts/make_screenshots.py` needs Chromium, LibreOffice and pdftoppm, and writes
`docs/images/page.png` and `docs/images/workbook.png`. Run it when the page or the workbook changes.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tracelens_ext.cli import run

IMAGES = Path(__file__).resolve().parents[1] / "images"
#: Larger pictures would make the repository slow to clone.
MOST_BYTES = 200_000


def main() -> None:
    """Write both pictures, and check that they are small."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        make_pictures(Path(folder))
    for path in sorted(IMAGES.glob("*.png")):
        size = path.stat().st_size
        print(f"{path.name}: {size / 1000:.0f} kB")
        if size > MOST_BYTES:
            sys.exit(f"{path}: {size} bytes is too large; show less in the picture")


def make_pictures(folder: Path) -> None:
    """Report on the demo trace, and take a picture of the page and of the first sheet."""
    with contextlib.chdir(folder):
        check(run(["demo", "trace.json.gz"]))
        outputs = ["-o", "report.xlsx", "--html", "report.html", "--quiet"]
        check(run(["report", "trace.json.gz"] + outputs))
    picture_of_page(folder / "report.html", IMAGES / "page.png")
    picture_of_first_sheet(folder / "report.xlsx", IMAGES / "workbook.png")


def check(exit_code: int) -> None:
    """End the program if a command failed."""
    if exit_code != 0:
        sys.exit(exit_code)


def picture_of_page(page: Path, target: Path) -> None:
    """Take a picture of the top of an HTML page."""
    subprocess.run(
        [
            program("chromium", "chromium-browser", "google-chrome"),
            "--headless=new",
            "--no-sandbox",
            "--hide-scrollbars",
            "--window-size=1200,1500",
            "--force-device-scale-factor=0.6",
            "--virtual-time-budget=10000",
            f"--screenshot={target}",
            page.as_uri(),
        ],
        check=True,
        capture_output=True,
    )


def picture_of_first_sheet(workbook: Path, target: Path) -> None:
    """Take a picture of the first page of a workbook as LibreOffice prints it."""
    folder = workbook.parent
    profile = f"-env:UserInstallation={(folder / 'profile').as_uri()}"
    convert = ["--headless", "--convert-to", "pdf", "--outdir", str(folder)]
    subprocess.run(
        [program("soffice"), profile] + convert + [str(workbook)],
        check=True,
        capture_output=True,
    )
    pdf = workbook.with_suffix(".pdf")
    size = ["-png", "-singlefile", "-r", "80", "-f", "1", "-l", "1"]
    subprocess.run(
        [program("pdftoppm")] + size + [str(pdf), str(target.with_suffix(""))],
        check=True,
        capture_output=True,
    )


def program(*names: str) -> str:
    """Return the path of the first of these programs that is installed."""
    for name in names:
        path = shutil.which(name)
        if path is not None:
            return path
    sys.exit(f"{names[0]} is not installed; the pictures cannot be made without it")


if __name__ == "__main__":
    main()
