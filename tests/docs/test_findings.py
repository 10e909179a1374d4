"""`docs/findings.md` does what it says, and has a section for each finding."""

from __future__ import annotations

import inspect
import re
import shlex
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.docs_helpers import page_text
from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer, findings
from tracelens_ext.cli import run
from tracelens_ext.findings import detectors, order
from tracelens_ext.findings.engine import offered_detectors
from tracelens_ext.findings.finding import Finding, Findings
from tracelens_ext.hooks import load_registry

if TYPE_CHECKING:
    from types import ModuleType

FILE = Path(findings.__file__).with_name("findings.md")
PAGE = FILE.read_text(encoding="utf-8")


def test_every_finding_has_a_section() -> None:
    ours = offered_detectors(load_registry(plugins=False))
    sections = set(re.findall(r"^## `([a-z0-9-]+)`$", PAGE, re.MULTILINE))
    missing = [each.item.id for each in ours if each.item.id not in sections]
    assert missing == [], f"docs/findings.md has no section for {', '.join(missing)}"


#: Sections with an example that the page's commands print; the others show recorded traces.
OF_THE_DEMO = tuple(
    f"`{name}`"
    for name in (
        "dataloader",
        "synchronization",
        "host-bound",
        "exposed-communication",
    )
)


def test_every_section_is_about_a_finding() -> None:
    ids = {each.item.id for each in offered_detectors(load_registry(plugins=False))}
    assert set(re.findall(r"^## `([a-z0-9-]+)`$", PAGE, re.MULTILINE)) <= ids


def test_the_page_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every line of an output on the page is one of the commands' lines, titles without rank."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    for command in re.findall(r"^\$ tracelens-ext (.*)$", PAGE, re.MULTILINE):
        assert run(shlex.split(command)) == 0, command
    printed = re.sub(r"(?m)^ ?\d+\. ", "", capsys.readouterr().out).splitlines()
    sections = re.split(r"(?m)^## ", PAGE)
    shown = [sections[0], *(each for each in sections if each.startswith(OF_THE_DEMO))]
    assert len(shown) == 1 + len(OF_THE_DEMO)
    for text in shown:
        (block,) = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
        for line in block.splitlines():
            if line not in ("", "…"):
                assert re.sub(r"^ ?\d+\. ", "", line) in printed
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(program, names)  # noqa: S102  # the documentation's own
    assert isinstance(names["found"], Findings)


def test_the_json_of_the_page_has_every_field() -> None:
    (shown,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    fields = {*Finding.__dataclass_fields__, *Findings(0.0).as_dict()} - {"claim"}
    assert {name for name in fields if f'"{name}":' not in shown} == set()


def test_adding_a_finding_is_one_file_and_one_registration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The diff of the documentation adds a file, and an import and an entry in `order.py`."""
    page = page_text("architecture.md")
    (diff,) = re.findall(
        r"```diff\n--- /dev/null\n\+\+\+ b/tracelens_ext/findings/detectors/(.*?)```",
        page,
        re.DOTALL,
    )
    addition, registration = diff.split("--- a/tracelens_ext/findings/order.py\n")
    file, _, *lines = addition.splitlines()
    assert all(line.startswith("+") for line in lines)
    (tmp_path / file).write_text(
        "".join(f"{line[1:]}\n" for line in lines), encoding="utf-8"
    )
    package: ModuleType = detectors
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])

    source = inspect.getsource(order)
    _, *hunks = registration.split("@@\n")
    for hunk in hunks:
        before = "".join(
            f"{line[1:]}\n" for line in hunk.splitlines() if line[0] in " -"
        )
        after = "".join(
            f"{line[1:]}\n" for line in hunk.splitlines() if line[0] in " +"
        )
        assert source.count(before) == 1
        source = source.replace(before, after)
    changed: dict[str, Any] = {"__name__": order.__name__}
    exec(source, changed)  # noqa: S102  # a file of this project
    monkeypatch.setattr(order, "DETECTORS", changed["DETECTORS"])

    maker = TraceMaker()
    maker.launched("first", 50, 50, correlation=1, at=10)
    maker.frame("<built-in function collect>", 120, 100)
    maker.launched("second", 400, 50, correlation=2, at=390)
    found = {
        each.id: each for each in TreePerfAnalyzer(maker.document()).findings().findings
    }
    assert found["garbage-collection"].attributed_ms == pytest.approx(0.1)
    assert found["host-bound"].attributed_ms == pytest.approx(0.2)
    name = f"{package.__name__}.{Path(file).stem}"
    assert import_module(name).__file__ == str(tmp_path / file)
    monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(package, Path(file).stem, raising=False)
