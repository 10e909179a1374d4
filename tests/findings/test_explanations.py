"""Explanations of findings without the web: by a command, on the page, and in JSON."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import tracelens_ext
from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.cli import run
from tracelens_ext.findings.engine import offered_detectors
from tracelens_ext.findings.explanations import explanation_of, explanations
from tracelens_ext.hooks import load_registry
from tracelens_ext.perf_report import build_perf_report
from tracelens_ext.report.html import page_of
from tracelens_ext.report.simple_markdown import html_of, lines_of

IDS = [each.item.id for each in offered_detectors(load_registry(plugins=False))]


def host_bound() -> TreePerfAnalyzer:
    maker = TraceMaker()
    for number in range(6):
        start = 1_000 + 1_500 * number
        maker.op("aten::mm", start - 20, 40)
        maker.launched("gemm", start + 10, 400, correlation=number + 1, at=start)
    return TreePerfAnalyzer(maker.document())


@pytest.mark.parametrize("identifier", IDS)
def test_every_finding_is_explained(
    identifier: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["explain", "finding", identifier]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{identifier}\n\n")
    assert len(shown.split()) > 40
    assert not re.search(r"\]\(|```|\.md\b", shown)


def test_the_findings_that_are_explained_are_listed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["explain", "finding"]) == 0
    listed = capsys.readouterr().out.splitlines()[1:]
    assert [line.strip() for line in listed] == sorted(explanations())


def test_an_unknown_finding_is_refused_with_the_nearest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["explain", "finding", "hostbound"]) == 2
    assert "did you mean 'host-bound'?" in capsys.readouterr().err
    assert run(["explain", "a_kernel", "host-bound"]) == 2


def test_json_carries_the_text() -> None:
    (finding,) = host_bound().findings().findings
    assert finding.as_dict()["explanation"] == explanation_of("host-bound") != ""
    assert finding.documentation == "tracelens-ext explain finding host-bound"


def test_no_table_has_the_text() -> None:
    assert "explanation" not in host_bound().get_df_findings()


def test_the_page_opens_the_text_below_each_finding() -> None:
    page, _ = page_of(build_perf_report(host_bound(), for_page=True))
    (card,) = re.findall(r'<li id="finding-host-bound">.*?</li>', page, re.DOTALL)
    assert "<summary>About this finding</summary>" in card
    assert html_of(explanation_of("host-bound")) in card


def test_no_message_points_to_a_file_of_the_documentation() -> None:
    root = Path(tracelens_ext.__file__).parent
    found = []
    for path in root.rglob("*.py"):
        module = ast.parse(path.read_text(encoding="utf-8"))
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
        docstrings = {
            ast.get_docstring(node, clean=False)
            for node in ast.walk(module)
            if isinstance(node, documented)
        }
        for node in ast.walk(module):
            value = (
                getattr(node, "value", None) if isinstance(node, ast.Constant) else None
            )
            is_message = isinstance(value, str) and value not in docstrings
            if is_message and "docs/" in str(value):
                found.append((path.name, value))
    assert found == []


def test_markdown_becomes_lines_and_html() -> None:
    text = "*Not* `a*b*c`, but\n2 < 3.\n\n```text\n<code>  line\n```\n"
    assert lines_of(text, width=12) == [
        "Not a*b*c,",
        "but 2 < 3.",
        "",
        "    <code>  line",
    ]
    assert html_of(text) == (
        "<p><em>Not</em> <code>a*b*c</code>, but 2 &lt; 3.</p>\n"
        "<pre><code>&lt;code&gt;  line</code></pre>"
    )
