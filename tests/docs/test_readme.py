"""The README is true: every command and every line of Python in it runs as it stands."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docs.scripts.generated_pages import built_in_tables, expanded
from tracelens_ext.cli import run
from tracelens_ext.cli.demo_recordings import copy_recording

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE
    )


@pytest.fixture(scope="module")
def folder(demo_trace: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with both demo traces, as commands are tested one by one."""
    here = tmp_path_factory.mktemp("readme")
    shutil.copytree(demo_trace.parent, here / "demo")
    copy_recording("nvidia_fixed", here / "demo" / "fixed.json.gz")
    return here


COMMANDS = [
    line.removeprefix("$ ").strip()
    for block in blocks("console")
    for line in block.splitlines()
    if line.startswith("$ tracelens-ext")
]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run(
    command: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    words = shlex.split(command, comments=True)
    code = run(words[1:])
    told = capsys.readouterr().err
    assert code == 0, told
    # The note of an export.
    assert [line for line in told.splitlines() if "left out" not in line] == []


@pytest.mark.process
@pytest.mark.parametrize("code", blocks("python"))
def test_python_runs(code: str, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^\$ make (\w+)", README, flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def anchors(page: Path) -> set[str]:
    """What GitHub calls the headings of a page, those included that the build adds."""
    text = expanded(page.read_text(encoding="utf-8"), built_in_tables())
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {
        re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-")
        for heading in headings
    }


def test_links_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        text = page.read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\((?!https?://)([^)#]*)#?([^)]*)\)", text):
            there = page.parent / target if target else page
            assert there.exists(), f"{page.name}: {target}"
            assert not anchor or anchor in anchors(there), (
                f"{page.name}: {target}#{anchor}"
            )


def test_the_screen_can_be_read_in_ten_seconds() -> None:
    (shown,) = blocks("text")
    assert len(shown.splitlines()) <= 12
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.process
def test_the_screen_is_what_the_command_above_it_prints(folder: Path) -> None:
    (shown,) = blocks("text")
    done = subprocess.run(
        [sys.executable, "-m", "tracelens_ext", "findings", "demo/trace.json.gz"],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
        env={"COLUMNS": "80", "PATH": "/usr/bin:/bin"},
    )
    printed = [line.rstrip() for line in done.stdout.splitlines()]
    for line in shown.rstrip().splitlines():
        assert line.rstrip() in printed or line.strip() == "…", line
