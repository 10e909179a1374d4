"""The tutorial and the guides that need no special trace: their commands run, in order."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.conftest import make_few_tables
from tests.support.comparison_helpers import needs_html
from tests.support.docs_helpers import DOCS, code_blocks, page_text
from tracelens_ext.cli import run


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")


def commands_of_page(text: str) -> list[list[str]]:
    """The words after `$ tracelens-ext` in the console blocks of a page."""
    blocks = "\n".join(code_blocks(text, "console"))
    return [
        shlex.split(re.sub(r" > \S+\.json$", "", line).removeprefix("$ tracelens-ext "))
        for line in blocks.splitlines()
        if line.startswith("$ tracelens-ext ")
    ]


@pytest.mark.slow
@needs_html
def test_the_tutorial_leads_from_a_slow_job_to_a_fix(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = page_text("tutorial.md")
    commands = commands_of_page(text)
    assert len(commands) >= 7
    for command in commands:
        assert run(command) == 0, command
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    for block in code_blocks(text, "text"):
        for line in block.splitlines():
            assert line.rstrip() in lines or line.strip() == "…", line


@pytest.mark.slow
@needs_html
@pytest.mark.parametrize(
    "page", ["index.md", "guard-ci.md", "read-the-report.md", "roofline.md"]
)
def test_the_commands_of_a_guide_run(
    page: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = commands_of_page(page_text(page))
    assert commands
    assert run(["demo", "trace.json.gz"]) == 0
    for command in commands:
        with monkeypatch.context() as patched:
            if command[0] == "report":
                make_few_tables(patched)
            assert run(command) == 0, (command, capsys.readouterr().err)


@pytest.mark.slow
def test_a_budget_that_is_exceeded_ends_with_the_code_that_the_guide_names() -> None:
    text = page_text("guard-ci.md")
    (code,) = re.findall(r"^\| (\d) \| a budget is exceeded", text, re.MULTILINE)
    assert run(["demo", "slow.json.gz"]) == 0
    assert run(["demo", "fixed.json.gz", "--fixed"]) == 0
    budget = ["--fail-if", "total_time > +5%"]
    assert run(["compare", "slow.json.gz", "fixed.json.gz"] + budget) == 0
    assert run(["compare", "fixed.json.gz", "slow.json.gz"] + budget) == int(code)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["idle-time.md", "python.md"])
def test_the_python_of_a_page_runs(page: str) -> None:
    assert run(["demo", "trace.json.gz"]) == 0
    blocks = code_blocks(page_text(page), "python")
    assert blocks
    for code in blocks:
        exec(code, {})  # noqa: S102  # of this project


def test_every_page_with_commands_is_tested() -> None:
    """A page whose commands no test reads would go out of date unnoticed."""
    tests = Path(__file__).resolve().parents[1]
    sources = [path.read_text(encoding="utf-8") for path in tests.rglob("test_*.py")]
    for page in DOCS.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        if re.search(r"^\$ tracelens-ext |^```python$", text, re.MULTILINE):
            assert any(f'"{page.name}"' in source for source in sources), page
