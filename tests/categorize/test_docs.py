"""The documentation is run: its files are written, its code executed, its commands compared."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.support.categorize_helpers import FakeEntryPoint
from tests.support.docs_helpers import code_blocks, page_text
from tracelens_ext.categorize import (
    CATEGORIES,
    KernelCategorizer,
    check_pack,
    load_pack,
)
from tracelens_ext.categorize.choices import offered_packs
from tracelens_ext.cli import run
from tracelens_ext.hooks import PluginRegistry, hookspecs
from tracelens_ext.perf_report import plugin_tables
from tracelens_ext.readers.formats import read_file
from tracelens_ext.report.tables.registry import offered_tables

ROOT = Path(__file__).resolve().parents[2]
FUSED = "void my_company::fused_bias_gelu<float>(float*)"
NVJET = "nvjet_tst_320x128_64x3_1x2_h_bz_coopB_TNT"
HALF = "void my_company::half_step<f16>()"


def blocks(page: str, language: str) -> list[str]:
    return code_blocks(page_text(page), language)


@pytest.fixture(autouse=True)
def reader_at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of somebody who follows the pages: their trace, and the files shown."""
    monkeypatch.chdir(tmp_path)
    events = [
        {
            "ph": "X",
            "cat": "kernel",
            "name": name,
            "pid": 0,
            "tid": 7,
            "ts": 10 * at,
            "dur": 5,
            "args": {"device": 0, "stream": 7, "correlation": at},
        }
        for at, name in enumerate([FUSED, NVJET, HALF, "zz_unknown"], start=1)
    ]
    Path("trace.json").write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    for block in blocks("write-rules.md", "toml"):
        Path(block.splitlines()[0].removeprefix("# ")).write_text(
            block, encoding="utf-8"
        )
    (one_map,) = blocks("write-rules.md", "json")
    Path("my_maps").mkdir()
    Path("my_maps/engine_def.json").write_text(one_map, encoding="utf-8")


def execute(code: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {
        "__name__": "page",
        "__file__": str(Path("page.py").resolve()),
    }
    exec(compile(code, "page.py", "exec"), namespace)  # noqa: S102
    return namespace


@pytest.mark.parametrize("name", ["my_rules.toml", "full.toml"])
def test_every_rule_file_in_the_documentation_is_correct(name: str) -> None:
    assert check_pack(load_pack(name)) == []


def categories(code: str) -> dict[str, str]:
    """The category of each kernel with the analyzer that a page's code makes."""
    table = execute(code)["analyzer"].get_df_kernel_summary()
    return dict(zip(table["kernel_name"], table["kernel_category"], strict=True))


def test_the_three_ways_work_as_documented() -> None:
    with_file, with_map, with_function, public = blocks("write-rules.md", "python")
    assert categories(with_file) | {HALF: "", NVJET: ""} == {
        FUSED: "My Fused Op",
        NVJET: "",
        HALF: "",
        "zz_unknown": "Uncategorized",
    }
    assert categories(with_map) == {
        FUSED: "mine",
        NVJET: "gemm",
        HALF: "mine",
        "zz_unknown": "others",
    }
    assert categories(with_function) | {FUSED: ""} == {
        FUSED: "",
        NVJET: "GEMM",
        HALF: "Half precision",
        "zz_unknown": "Uncategorized",
    }
    execute(public)


def commands(page: str) -> list[tuple[str, str]]:
    """Every command of a page with the output shown."""
    found = []
    for block in blocks(page, "console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, output = part.partition("\n")
            found.append((line, output))
    return found


@pytest.mark.parametrize(("line", "output"), commands("write-rules.md"))
def test_commands_and_their_output(
    line: str, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    program, *arguments = shlex.split(line)
    assert program == "tracelens-ext"
    assert run(arguments) == 0
    printed = capsys.readouterr().out
    if output:
        assert printed == output


def test_commands_about_plugins(capsys: pytest.CaptureFixture[str]) -> None:
    ours = [shlex.split(line) for line, _ in commands("write-a-plugin.md")]
    for arguments in [words[1:] for words in ours if words[0] == "tracelens-ext"]:
        assert run(arguments) == 0
    assert "category  " in capsys.readouterr().out


def test_every_hook_example_is_a_working_plugin(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text(
        Path("my_rules.toml").read_text("utf-8"), "utf-8"
    )
    *examples, testing = blocks("write-a-plugin.md", "python")
    hooks: set[str] = set()
    for code in examples:
        module = type("Module", (), execute(code))
        registry = PluginRegistry([FakeEntryPoint("page", module)])
        assert registry.problems == []
        hooks.update(registry.plugins[0].hooks)
        assert [offered.item.name for offered in offered_packs(registry)] in (
            [],
            ["rules"],
        )
        for hook in registry.hooks("tracelens_categorize_kernels"):
            table = pd.DataFrame(
                {"kernel_name": ["x" * 1001, "k"], "cpu_op": [None, "op"]}
            )
            assert hook.call(table=table).fillna("-").tolist() == [
                "Template monster",
                "-",
            ]
        Path("list.txt").write_text("# kernel list\n1,2,f<a, b>\n", encoding="utf-8")
        trace = read_file("list.txt", registry=registry, own=False)
        assert (trace is None) == (not registry.hooks("tracelens_readers"))
        assert [each.item.name for each in offered_tables(registry)] in (
            [],
            ["launches"],
        )
        assert registry.problems == []
    assert hooks == {name for name in vars(hookspecs) if name.startswith("tracelens_")}
    execute(testing)


def test_the_report_sheet_example() -> None:
    from tracelens_ext import TreePerfAnalyzer

    (code,) = [
        c
        for c in blocks("write-a-plugin.md", "python")
        if "tracelens_report_sheets" in c
    ]
    registry = PluginRegistry(
        [FakeEntryPoint("page", type("Module", (), execute(code)))]
    )
    sheets = plugin_tables(TreePerfAnalyzer("trace.json"), registry=registry)
    assert registry.problems == []
    assert len(sheets["longest_kernels"]) == 4


def test_every_category_is_on_the_page() -> None:
    text = page_text("write-rules.md")
    for category in CATEGORIES:
        assert f"`{category}`" in text


def test_adding_a_rule_is_one_hunk(tmp_path: Path) -> None:
    """The example of the page on the architecture, applied to its pack, is sound and is asked."""
    (diff,) = [d for d in blocks("architecture.md", "diff") if "b/categorizers/" in d]
    header, _, _, *lines = diff.splitlines()
    before, after = (
        "".join(f"{line[1:]}\n" for line in lines if line[:1] in kept)
        for kept in (" -", " +")
    )
    source = (ROOT / header.removeprefix("--- a/")).read_text(encoding="utf-8")
    assert source.count(before) == 1
    changed = tmp_path / "changed.toml"
    changed.write_text(source.replace(before, after), encoding="utf-8")
    assert check_pack(load_pack(changed)) == []
    (example,) = re.findall(r'^\+examples = \["(.*)"\]$', diff, flags=re.MULTILINE)
    categorizer = KernelCategorizer.create(rules=[changed])
    assert categorizer.categorize([example]).category == ["MoE Routing"]
    assert KernelCategorizer.create().categorize([example]).category != ["MoE Routing"]
