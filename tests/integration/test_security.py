"""Each promise of SECURITY.md, kept."""

from __future__ import annotations

import ast
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.broken_input_helpers import FOLDER
from tests.support.make_trace import TraceMaker, cuda_graph_example
from tracelens_ext.cli import run
from tracelens_ext.report.formats import json_safe

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [
    path
    for folder in ("tracelens_ext", "categorizers", "plugins")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
CONTROL = set(
    map(chr, (*range(10), *range(11, 32), *range(0x7F, 0xA0), 0x202E, 0x2066))
)
HOSTILE = (
    "=1+1 [bold]x[/b] a[/b] [clone .kd] <script>x</script> \x1b[31m\x07\x9b\u202e\r|`"
)


def _trace(folder: Path) -> Path:
    path = folder / "trace.json"
    path.write_text(json.dumps(cuda_graph_example()), encoding="utf-8")
    return path


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A trace in which every text is hostile."""
    maker = TraceMaker(process=HOSTILE, thread=HOSTILE)
    maker.process_name(HOSTILE, HOSTILE)
    maker.annotation("ProfilerStep#1", 0, 300)
    for number in range(3):
        at = 100 * number
        maker.op(f"{HOSTILE}{number}", at, 90, args={"Input type": [HOSTILE]})
        maker.launched(HOSTILE, at + 30, 20, correlation=number, at=at + 10)
        maker.gpu("gpu_memcpy", f"Memcpy {HOSTILE}", at + 55, 5)
    document = maker.document(
        deviceProperties=[{"id": 0, "name": HOSTILE}], distributedInfo={"rank": HOSTILE}
    )
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


# What is never in the source.


MODULES = {
    "pickle",
    "marshal",
    "shelve",
    "dill",
    "cloudpickle",
    "joblib",
    "yaml",
    "runpy",
}
CALLS = {"eval", "exec", "compile", "__import__"}
METHODS = {
    "system",
    "popen",
    "read_pickle",
    "to_pickle",
    "eval",
    "query",
    "spawnl",
    "execv",
}
ARGUMENTS = {"shell", "allow_pickle"}
#: Whatever is forbidden has one of these words, and few files have; `re.compile` is usual.
WORDS = re.compile(rf"(?<!re\.)\b({'|'.join(MODULES | CALLS | METHODS | ARGUMENTS)})\b")


def _forbidden(text: str) -> Iterator[str]:
    if not WORDS.search(text):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found = {alias.name.split(".")[0] for alias in node.names} & MODULES
            yield from (f"import {name}" for name in found)
        elif (
            isinstance(node, ast.ImportFrom)
            and (node.module or "").split(".")[0] in MODULES
        ):
            yield f"from {node.module} import"
        elif isinstance(node, ast.Call):
            name = node.func
            if isinstance(name, ast.Name) and name.id in CALLS:
                yield f"{name.id}()"
            if isinstance(name, ast.Attribute) and name.attr in METHODS:
                yield f".{name.attr}()"
            for keyword in node.keywords:
                if keyword.arg in ARGUMENTS:
                    yield f"{keyword.arg}="


def test_nothing_that_runs_data() -> None:
    found = {
        str(source.relative_to(ROOT)): forbidden
        for source in SOURCES
        if (forbidden := list(_forbidden(source.read_text(encoding="utf-8"))))
    }
    # Its unpickler refuses all that could run.
    assert found == {"tracelens_ext/readers/plain_pickle.py": ["import pickle"]}


def test_and_it_would_be_found() -> None:
    text = "import pickle\nfrom yaml import load\neval('1')\nos.system('x')\nrun('x', shell=True)"
    assert len(list(_forbidden(text))) == 5


# Hostile traces.


def test_a_gzip_bomb(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    bomb = tmp_path / "bomb.json.gz"
    with gzip.open(bomb, "wb") as file:
        file.write(b'{"traceEvents": [')
        for _ in range(50):
            file.write(b" " * 10**6)
    before = time.process_time()
    assert run(["kernels", str(bomb), "--max-bytes", "5MB"]) == 1
    assert time.process_time() - before < 5
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert "more than 5 MB of text" in said
    assert "--max-bytes" in said


def test_a_small_file_may_not_unpack_to_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The limit that nobody has to ask for, with a smaller floor than its 200 MB."""
    bomb = tmp_path / "bomb.json.gz"
    bomb.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * 20_000_000, 9))
    monkeypatch.setattr("tracelens_ext.readers.source._ALLOWED_BYTES", 1_000_000)
    assert run(["kernels", str(bomb)]) == 1
    assert "100 times its size" in capfd.readouterr().err


COMMANDS = (
    ["report", "--gaps", "--short-kernel-study"],
    ["kernels", "-v"],
    ["gaps"],
    ["tree"],
    ["iterations"],
    ["kernels", "--gaps"],
    ["kernels", "--json"],
    ["gaps", "--json"],
    ["rules", "suggest"],
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_the_terminal_gets_no_control_character(
    command: list[str],
    hostile: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(hostile.parent)
    words = 2 if command[0] == "rules" else 1
    assert run([*command[:words], str(hostile), *command[words:]]) == 0
    printed, said = capfd.readouterr()
    assert not CONTROL & set(printed)
    assert not CONTROL & set(said)
    if command[0] != "tree":
        assert "[clone .kd]" in printed or "clone" not in printed


@pytest.mark.parametrize(
    "name", ["no_events_member.json", "chrome_trace_of_another_tool.json", "jax.json"]
)
def test_nor_does_standard_error(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Messages that name what is in a file."""
    path = tmp_path / "a\x1b[31m\u202e.json"
    text = (FOLDER / name).read_text(encoding="utf-8")
    for plain in ("schemaVersion", "hip_api", "fusion.1"):
        text = text.replace(plain, json.dumps(f"{plain}{HOSTILE}")[1:-1])
    path.write_text(text, encoding="utf-8")
    assert run(["report", str(path)]) == 1
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert not CONTROL & set(said)


def test_names_stay_text_in_files(hostile: Path, tmp_path: Path) -> None:
    import openpyxl

    book = tmp_path / "r.xlsx"
    page = tmp_path / "r.html"
    text = tmp_path / "r.md"
    assert (
        run(["report", str(hostile), "-o", str(book), "--quiet", "--html", str(page)])
        == 0
    )
    assert run(["report", str(hostile), "-o", str(text), "--quiet"]) == 0
    cells = [
        (cell.value, cell.data_type)
        for sheet in openpyxl.load_workbook(book).worksheets
        for row in sheet.iter_rows()
        for cell in row
        if isinstance(cell.value, str)
    ]
    assert any(value.startswith("=1+1") for value, _ in cells)
    assert {kind for _, kind in cells} <= {"s", "inlineStr"}
    assert "<script>x</script>" not in page.read_text(encoding="utf-8")
    assert not CONTROL & set(text.read_text(encoding="utf-8"))


def test_csv_keeps_names_as_they_are(hostile: Path, tmp_path: Path) -> None:
    """As the documentation says: who opens them in a spreadsheet has to know."""
    import pandas as pd

    assert (
        run(["report", str(hostile), "--csv-dir", str(tmp_path / "csv"), "--quiet"])
        == 0
    )
    table = pd.read_csv(tmp_path / "csv" / "kernels_by_category.csv")
    assert HOSTILE in set(table["kernel_name"])


def test_json_keeps_names_and_escapes_them() -> None:
    text = json.dumps(HOSTILE, ensure_ascii=False)
    assert json.loads(json_safe(text)) == HOSTILE
    assert not CONTROL & set(json_safe(text))


# Rules.


@pytest.mark.usefixtures("impatient")
def test_a_pattern_cannot_hang_a_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    maker = TraceMaker()
    maker.launched("a" * 64 + "!", 50, 20, correlation=1, at=10)
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps(maker.document()), encoding="utf-8")
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\ncategory = "X"\npattern = "^(a|aa|a?a)+(?<=b)$"\n')
    before = time.monotonic()
    code = run(["kernels", str(trace), "--rules", str(rules)])
    assert time.monotonic() - before < 30
    printed, said = capfd.readouterr()
    assert code == 1
    assert printed == ""
    assert said.count("\n") == 1
    assert "rules.toml: rule 1: pattern: " in said
    assert "takes too long on" in said


# Files of the user's.

MARKED = (
    "tracelens_ext",
    "tracelens_ext_categorizers",
    "pandas",
    "numpy",
    "json",
    "regex",
)


@pytest.mark.process
def test_no_module_of_the_working_folder_is_run(tmp_path: Path) -> None:
    """By the command; `python -m` looks there first, which is Python's own rule."""
    program = shutil.which("tracelens-ext", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("the command is not installed")
    for name in (*MARKED, "sitecustomize", "usercustomize", "conftest", "setup"):
        body = f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})\n"
        (tmp_path / f"{name}.py").write_text(body)
    (tmp_path / "my_plugin.egg-info").mkdir()
    (tmp_path / "my_plugin.egg-info" / "entry_points.txt").write_text(
        "[tracelens_ext]\nx = pandas\n"
    )
    (tmp_path / "my_plugin.egg-info" / "PKG-INFO").write_text(
        "Name: my-plugin\nVersion: 1\n"
    )
    trace = _trace(tmp_path)
    environment = {
        key: value for key, value in os.environ.items() if key != "PYTHONPATH"
    }
    done = subprocess.run(
        [
            program,
            "report",
            str(trace),
            "-o",
            "r.xlsx",
            "--csv-dir",
            "csv",
            "--jobs",
            "2",
        ],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "r.xlsx").exists()
    assert not (tmp_path / "ran").exists()


@pytest.mark.process
def test_only_the_built_ins_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A stranger's plugin, installed: run as a rule, and not so much as imported on request."""
    site = tmp_path / "site"
    info = site / "stranger-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: stranger\nVersion: 1\n"
    )
    (info / "entry_points.txt").write_text(
        "[tracelens_ext]\nstranger = stranger_plugin\n"
    )
    (site / "stranger_plugin.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w').close()\n"
    )
    monkeypatch.syspath_prepend(str(site))
    trace = _trace(tmp_path)
    monkeypatch.setenv("TRACELENS_EXT_NO_PLUGINS", "1")
    assert run(["kernels", str(trace)]) == 0
    assert not (tmp_path / "ran").exists()
    assert "stranger" not in capfd.readouterr().err
    program = [sys.executable, "-m", "tracelens_ext", "kernels", str(trace)]
    environment = os.environ | {
        "PYTHONPATH": str(site),
        "TRACELENS_EXT_NO_PLUGINS": "0",
    }
    done = subprocess.run(
        program,
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0
    assert "stranger" in done.stderr, "it has no hook, and is reported by name"
    assert (tmp_path / "ran").exists()


# Databases.


def test_a_database_is_opened_read_only_and_alone(tmp_path: Path) -> None:
    """Nothing is written beside it, and it is not changed, in a folder that allows both."""
    path = tmp_path / "trace.sqlite"
    shutil.copyfile(FOLDER / "nsys_without_gpu_tables.sqlite", path)
    before = path.read_bytes()
    assert run(["kernels", str(path), "--no-cache"]) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["trace.sqlite"]
    assert path.read_bytes() == before


def test_sqlite_never_loads_extensions() -> None:
    for source in SOURCES:
        text = source.read_text(encoding="utf-8")
        assert "enable_load_extension" not in text
        for connection in re.findall(r"sqlite3\.connect\([^)]*\)", text):
            writes_an_export = "def open_database(" in text and "(path)" in connection
            reads_only = "mode=ro&immutable=1" in connection
            in_memory = ":memory:" in connection
            assert writes_an_export or reads_only or in_memory, connection


def test_the_promises_are_written_down() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    for word in (
        "--max-bytes",
        "TRACELENS_EXT_NO_PLUGINS",
        "CSV",
        "read-only",
        "report",
    ):
        assert word in text
