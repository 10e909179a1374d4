"""Finding, loading and asking plugins; each way to be broken is named and stops nothing."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pluggy
import pytest
import typer

from tests.support.categorize_helpers import (
    FakeEntryPoint,
    plugin,
    registry,
    write_pack,
)
from tests.support.docs_helpers import page_text
from tracelens_ext.categorize import KernelCategorizer, Rule, RulePack
from tracelens_ext.categorize.choices import offered_packs
from tracelens_ext.cli import commands as commands_module
from tracelens_ext.cli import run
from tracelens_ext.cli.plugin_status import plugin_status
from tracelens_ext.findings.engine import offered_detectors
from tracelens_ext.findings.inspection import Detector
from tracelens_ext.hooks import (
    NO_PLUGINS_VARIABLE,
    Command,
    PluginAnswerError,
    PluginRegistry,
    default_registry,
    hookimpl,
    hookspecs,
    load_registry,
)
from tracelens_ext.hooks.registry import SECONDS_VARIABLE
from tracelens_ext.perf_report import plugin_tables
from tracelens_ext.readers.formats import offered_readers
from tracelens_ext.roofline.models import offered_models

ROOT = Path(__file__).resolve().parents[2]
HOOKS = sorted(name for name in vars(hookspecs) if name.startswith("tracelens_"))


@hookimpl
def tracelens_rule_packs() -> list[RulePack]:
    return [RulePack("good", (Rule("Good", "good"),))]


GOOD = plugin(tracelens_rule_packs=tracelens_rule_packs)


def problem_of(module: object) -> str:
    """The one problem of a plugin; its neighbour must not suffer."""
    plugins = registry(broken=module, good=GOOD)
    asked = KernelCategorizer.create(registry=plugins)
    assert asked.categorize(["good"]).category == ["Good"]
    plugin_tables(object(), registry=plugins)
    offered_readers(plugins)
    offered_models(plugins)
    offered_detectors(plugins)
    problems = list(dict.fromkeys([*plugins.problems, *asked.problems]))
    assert len(problems) == 1
    assert problems[0].startswith("broken: ")
    assert "\n" not in problems[0]
    return problems[0].removeprefix("broken: ")


def test_import_errors_are_reported_by_name() -> None:
    assert (
        problem_of(ImportError("no module\nnamed x"))
        == "ImportError: no module named x"
    )
    assert problem_of(SystemExit(3)) == "SystemExit: 3"
    assert problem_of(SyntaxError("bad")) == "SyntaxError: bad"


def test_an_interrupt_is_not_swallowed() -> None:
    with pytest.raises(KeyboardInterrupt):
        registry(broken=KeyboardInterrupt())


def test_a_misspelt_hook() -> None:
    @hookimpl
    def tracelens_rule_pack() -> list[str]:
        return []

    module = plugin(tracelens_rule_pack=tracelens_rule_pack)
    assert problem_of(module) == (
        "unknown hook 'tracelens_rule_pack'; did you mean 'tracelens_rule_packs'?"
    )


def test_a_wrong_signature_leaves_none_of_the_plugins_hooks_live() -> None:
    @hookimpl
    def tracelens_rule_packs() -> list[RulePack]:
        return [RulePack("half", (Rule("Half", "good"),), priority=99)]

    @hookimpl
    def tracelens_report_sheets(analyzer: object, extra: object) -> dict[str, object]:
        return {"x": (analyzer, extra)}

    module = plugin(
        tracelens_rule_packs=tracelens_rule_packs,
        tracelens_report_sheets=tracelens_report_sheets,
    )
    assert "Argument(s) {'extra'} are declared in the hookimpl" in problem_of(module)


def test_a_plugin_without_hooks() -> None:
    def tracelens_rule_packs() -> list[str]:
        return []

    module = plugin(tracelens_rule_packs=tracelens_rule_packs)
    assert problem_of(module) == "has no hook; mark its functions with @hookimpl"


def test_two_plugins_of_one_name() -> None:
    plugins = PluginRegistry(
        [FakeEntryPoint("same", GOOD), FakeEntryPoint("same", plugin())]
    )
    assert plugins.problems == [
        "same (unknown): another plugin already has this name; rename the entry point"
    ]
    assert [offered.plugin for offered in offered_packs(plugins)] == [
        plugins.plugins[0]
    ]
    assert [bool(status.problems) for status in plugin_status(plugins)] == [False, True]


def test_two_entry_points_of_one_object() -> None:
    plugins = PluginRegistry([FakeEntryPoint("one", GOOD), FakeEntryPoint("two", GOOD)])
    assert plugins.problems == ["two: refers to the same object as the plugin 'one'"]


def test_wrappers_are_refused() -> None:
    @pluggy.HookimplMarker("tracelens_ext")(wrapper=True)
    def tracelens_rule_packs() -> Any:
        return (yield)

    module = plugin(tracelens_rule_packs=tracelens_rule_packs)
    assert problem_of(module) == "tracelens_rule_packs: hook wrappers are not supported"


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (ValueError("oops"), "ValueError: oops"),
        (None, "tracelens_rule_packs: expected a list, got NoneType"),
        ("rules.toml", "tracelens_rule_packs: expected a list, got str"),
        (
            [5],
            "tracelens_rule_packs: expected paths of rule packs, dicts or RulePack objects, got",
        ),
        (["/nowhere/x.toml"], "/nowhere/x.toml: no such file"),
        (
            ["/nowhere/x.json"],
            "/nowhere/x.json: no such file; give the path of a JSON map",
        ),
        ([{"rule": [{"category": "a"}]}], "pack 'broken': rule 1: pattern: missing"),
        (
            [{"E": {"M": {"(": "a"}}}],
            "a map of broken: E:M: rule 1: pattern: expected a regular",
        ),
    ],
)
def test_broken_rule_packs(answer: Any, problem: str) -> None:
    @hookimpl
    def tracelens_rule_packs() -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    found = problem_of(plugin(tracelens_rule_packs=tracelens_rule_packs))
    assert found.startswith(problem)


def test_one_broken_pack_leaves_the_plugins_others(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[[rule]]\n", encoding="utf-8")
    good = write_pack(tmp_path, "fine", ("Fine", "fine"))

    @hookimpl
    def tracelens_rule_packs() -> list[Path]:
        return [tmp_path / "bad.toml", good]

    plugins = registry(p=plugin(tracelens_rule_packs=tracelens_rule_packs))
    assert [offered.item.name for offered in offered_packs(plugins)] == ["fine"]
    assert len(plugins.problems) == 1
    assert [
        (status.works, len(status.problems)) for status in plugin_status(plugins)
    ] == [(True, 1)]


def test_dicts_may_be_packs_and_engine_maps() -> None:
    @hookimpl
    def tracelens_rule_packs() -> list[Any]:
        pack = {"rule": [{"category": "Mine", "pattern": "mine_"}]}
        return [{"ENG": {"M1": {"a": "x"}, "M2": {"a": "y"}}}, pack]

    plugins = registry(my_kernels=plugin(tracelens_rule_packs=tracelens_rule_packs))
    names = [offered.item.name for offered in offered_packs(plugins)]
    assert (names, plugins.problems) == (["ENG:M1", "ENG:M2", "my_kernels"], [])
    asked = KernelCategorizer.create(categorizer="ENG:M2", registry=plugins)
    assert asked.categorize(["a"]).category == ["y"]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (RuntimeError("oops"), "RuntimeError: oops"),
        (
            ["A", "B"],
            (
                "categorizer broken: expected 1 categories, one per row of the table, "
                "got 2; it is called once, with a table whose columns are kernel_name "
                "and cpu_op, and returns a category or None for each row; give a "
                "function f of one name as lambda table: [f(name) for name in "
                "table.kernel_name]"
            ),
        ),
        ([1], "categorizer broken: expected categories as strings or None, got 1"),
    ],
)
def test_broken_python_categorizers(answer: Any, problem: str) -> None:
    @hookimpl
    def tracelens_categorize_kernels(table: pd.DataFrame) -> Any:
        assert len(table) == 1
        if isinstance(answer, Exception):
            raise answer
        return answer

    found = problem_of(
        plugin(tracelens_categorize_kernels=tracelens_categorize_kernels)
    )
    assert found == problem


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ([5], "tracelens_findings: expected Detector objects, got int"),
        (
            [Detector("No id", lambda _: None)],
            "detector 'No id': an id is lower case with hyphens",
        ),
        (7, "tracelens_findings: expected a list, got int"),
    ],
)
def test_broken_detectors(answer: Any, problem: str) -> None:
    @hookimpl
    def tracelens_findings() -> Any:
        return answer

    assert problem_of(plugin(tracelens_findings=tracelens_findings)) == problem


def test_a_plugin_that_does_not_answer_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(SECONDS_VARIABLE, "0.2")

    @hookimpl
    def tracelens_categorize_kernels(table: pd.DataFrame) -> list[None]:
        time.sleep(1.0)
        return [None] * len(table)

    started = time.perf_counter()
    found = problem_of(
        plugin(tracelens_categorize_kernels=tracelens_categorize_kernels)
    )
    assert found == f"no answer within 0.2 s; change the limit with {SECONDS_VARIABLE}"
    assert time.perf_counter() - started < 0.9


def test_report_sheets() -> None:
    table = pd.DataFrame({"a": [1]})

    @hookimpl
    def tracelens_report_sheets(analyzer: object) -> dict[str, pd.DataFrame]:
        assert analyzer == "the analyzer"
        return {"mine": table, "GPU_Timeline": table}

    plugins = registry(p=plugin(tracelens_report_sheets=tracelens_report_sheets))
    sheets = plugin_tables("the analyzer", ["gpu_timeline"], plugins)
    assert list(sheets) == ["mine"]
    assert sheets["mine"] is table
    assert plugins.problems == ["p: sheet 'GPU_Timeline': the report already has one"]


@pytest.mark.parametrize("answer", [None, [1], {"a": 1}, {1: pd.DataFrame()}])
def test_broken_report_sheets(answer: Any) -> None:
    @hookimpl
    def tracelens_report_sheets() -> Any:
        return answer

    found = problem_of(plugin(tracelens_report_sheets=tracelens_report_sheets))
    assert found.startswith(
        "tracelens_report_sheets: expected sheet name → DataFrame, got "
    )


@pytest.mark.parametrize("answer", [[5], "x", {"aten::mm": 5}, {5: len}, None])
def test_models_that_are_no_functions(answer: Any) -> None:
    @hookimpl
    def tracelens_performance_models() -> Any:
        return answer

    found = problem_of(
        plugin(tracelens_performance_models=tracelens_performance_models)
    )
    assert found == "tracelens_performance_models: expected operation name → function"


def test_each_item_that_is_offered_is_checked_for_itself() -> None:
    @hookimpl
    def tracelens_sheets() -> Any:
        yield from ["one", 2, "three"]

    def check(item: object) -> None:
        if not isinstance(item, str):
            raise PluginAnswerError(
                f"tracelens_sheets: expected a string, got {item!r}"
            )

    plugins = registry(
        b=plugin(tracelens_sheets=tracelens_sheets),
        a=plugin(tracelens_sheets=hookimpl(lambda: ["four"])),
        z=plugin(tracelens_sheets=hookimpl(priority=1)(lambda: ["five"])),
    )
    offered = [
        (o.item, o.plugin.name) for o in plugins.offers("tracelens_sheets", check)
    ]
    assert offered == [("five", "z"), ("four", "a"), ("one", "b"), ("three", "b")]
    assert plugins.problems == ["b: tracelens_sheets: expected a string, got 2"]


def test_a_generator_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECONDS_VARIABLE, "0.1")

    @hookimpl
    def tracelens_readers() -> Any:
        time.sleep(0.5)
        yield FakeReader("late")

    plugins = registry(p=plugin(tracelens_readers=tracelens_readers))
    assert offered_readers(plugins) == []
    assert plugins.problems == [
        f"p: no answer within 0.1 s; change the limit with {SECONDS_VARIABLE}"
    ]


class FakeReader:
    """Reads nothing."""

    def __init__(self, name: str) -> None:
        self.name = name

    def recognises(self, path: Path, head: bytes) -> bool:
        raise NotImplementedError

    def read(self, path: Path) -> Any:
        raise NotImplementedError


def test_broken_readers() -> None:
    broken = plugin(tracelens_readers=hookimpl(lambda: 5))
    assert problem_of(broken) == "tracelens_readers: expected a list, got int"
    broken = plugin(tracelens_readers=hookimpl(lambda: [5]))
    assert problem_of(broken) == "tracelens_readers: 5 has no method 'recognises'"


def test_pluggys_own_marker_will_do() -> None:
    marker = pluggy.HookimplMarker("tracelens_ext")
    plugins = registry(p=plugin(tracelens_readers=marker(lambda: [FakeReader("r")])))
    assert [offered.item.name for offered in offered_readers(plugins)] == ["r"]


def test_status_shows_what_each_plugin_brings_and_what_fails() -> None:
    @hookimpl
    def tracelens_categorize_kernels(table: pd.DataFrame) -> list[str]:
        return ["too", "many", "answers"][: len(table) + 1]

    by_name = {
        status.plugin.name: status
        for status in plugin_status(
            registry(
                good=GOOD,
                gone=ImportError("gone"),
                bad=plugin(tracelens_categorize_kernels=tracelens_categorize_kernels),
            )
        )
    }
    assert by_name["good"].packs == ("good",)
    assert by_name["good"].problems == ()
    assert by_name["good"].plugin.hooks == ("tracelens_rule_packs",)
    assert by_name["gone"].problems == ("ImportError: gone",)
    assert [name for name, status in by_name.items() if status.works] == ["good"]
    assert "expected 2 categories" in by_name["bad"].problems[0]


def install(
    folder: Path, name: str, entry_points: dict[str, str], **modules: str
) -> None:
    """Leave a distribution of somebody's in a folder, as an installer would."""
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(text, encoding="utf-8")
    info = folder / f"{name}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n", encoding="utf-8"
    )
    lines = [f"{key} = {value}" for key, value in entry_points.items()]
    (info / "entry_points.txt").write_text(
        "\n".join(["[tracelens_ext]", *lines, ""]), encoding="utf-8"
    )


@pytest.fixture
def installed_stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody's distribution that also claims a name of ours."""
    install(
        tmp_path,
        "stranger",
        {"stranger": "stranger_kernels", "builtin": "stranger_kernels"},
        stranger_kernels="from tracelens_ext import hookimpl\n"
        "@hookimpl\n"
        "def tracelens_rule_packs():\n"
        "    return [{'rule': [{'category': 'Strange', 'pattern': 'kernel_mha'}]}]\n",
    )
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.process
def test_broken_plugins_are_named_on_stderr_and_the_report_is_written(
    tmp_path: Path,
) -> None:
    install(
        tmp_path,
        "broken",
        {
            "gone": "no_such_module",
            "misspelt": "misspelt_hook",
            "raises": "raising_hook",
        },
        misspelt_hook="from tracelens_ext import hookimpl\n"
        "@hookimpl\ndef tracelens_rule_pack(): return []\n",
        raising_hook="from tracelens_ext import hookimpl\n"
        "@hookimpl\ndef tracelens_categorize_kernels(table): return 1 / 0\n",
    )
    event = {
        "ph": "X",
        "cat": "kernel",
        "name": "kernel_mha",
        "pid": 0,
        "tid": 7,
        "ts": 1,
        "dur": 5,
        "args": {"device": 0, "stream": 7, "correlation": 1},
    }
    (tmp_path / "trace.json").write_text(
        json.dumps({"traceEvents": [event]}), encoding="utf-8"
    )
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "tracelens_ext",
            "report",
            "trace.json",
            "-o",
            "report.xlsx",
        ],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "report.xlsx").is_file()
    for problem in (
        "gone: ModuleNotFoundError: No module named 'no_such_module'",
        "misspelt: unknown hook 'tracelens_rule_pack'; did you mean 'tracelens_rule_packs'?",
        "raises: ZeroDivisionError: division by zero",
    ):
        assert problem in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.usefixtures("installed_stranger")
def test_installed_plugins_are_found_and_beat_the_built_ins() -> None:
    plugins = load_registry()
    assert "stranger 1.2" in {plugin.distribution for plugin in plugins.plugins}
    assert next(p.own for p in plugins.plugins if p.name == "builtin")
    assert any(
        p.startswith("builtin (stranger 1.2): another plugin") for p in plugins.problems
    )
    asked = KernelCategorizer.create(registry=plugins)
    assert asked.categorize(["kernel_mha"]).category == ["Strange"]


@pytest.mark.usefixtures("installed_stranger")
def test_no_plugins_keeps_only_this_distributions_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(NO_PLUGINS_VARIABLE, "1")
    plugins = load_registry()
    assert all(plugin.own for plugin in plugins.plugins)
    asked = KernelCategorizer.create(registry=plugins)
    assert asked.categorize(["kernel_mha"]).category == ["Flash Attention Forward"]
    monkeypatch.setenv(NO_PLUGINS_VARIABLE, "0")
    assert not all(plugin.own for plugin in load_registry().plugins)
    assert all(plugin.own for plugin in load_registry(plugins=False).plugins)


def test_the_registry_of_the_process_is_loaded_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert default_registry() is default_registry()
    monkeypatch.setenv(NO_PLUGINS_VARIABLE, "1")
    assert all(plugin.own for plugin in default_registry().plugins)


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_is_documented_and_tested(hook: str) -> None:
    documentation = getattr(hookspecs, hook).__doc__
    assert "Returns:" in documentation
    page = page_text("write-a-plugin.md")
    assert f"@hookimpl\ndef {hook}(" in page.replace(
        "@hookimpl(priority=10)", "@hookimpl"
    )
    tree = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    implemented = {
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
    }
    assert hook in implemented


@pytest.mark.parametrize(
    "module", ["tracelens_ext_categorizers", "tracelens_ext_plugins"]
)
def test_the_library_imports_no_plugin_by_name(module: str) -> None:
    for path in (ROOT / "tracelens_ext").rglob("*.py"):
        assert module not in path.read_text(encoding="utf-8"), path


def greet(name: str, loud: bool = False) -> None:
    """Greet somebody."""
    typer.echo(f"HELLO {name}" if loud else f"hello {name}")


def test_a_plugin_adds_a_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @hookimpl
    def tracelens_commands() -> list[object]:
        greeting = f"{__name__}:greet"
        return [
            Command("greet", "Greet somebody.", greeting, "Manage"),
            Command("absent", "Is not there.", "no_such_module:absent", "Manage"),
            Command("gaps", "Takes a name.", greeting),
            Command("misplaced", "Is of no group.", greeting, "Elsewhere"),
        ]

    plugins = PluginRegistry(
        [
            FakeEntryPoint("commands", commands_module, own=True),
            FakeEntryPoint("theirs", plugin(tracelens_commands=tracelens_commands)),
        ]
    )
    monkeypatch.setattr("tracelens_ext.cli.app.default_registry", lambda: plugins)
    assert run(["--help"]) == 0
    assert "  greet       Greet somebody.\n" in capsys.readouterr().out
    assert run(["greet", "Ann", "--loud"]) == 0
    assert capsys.readouterr().out == "HELLO Ann\n"
    assert run(["absent"]) == 1
    assert "command 'absent': ModuleNotFoundError" in capsys.readouterr().err
    assert sorted(set(plugins.problems)) == [
        "theirs: command 'gaps': there is one already",
        "theirs: command 'misplaced': the group is one of Inspect, Diagnose, Compare, Manage",
    ]
