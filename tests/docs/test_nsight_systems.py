"""The examples of docs/how-to/nsight-systems.md do what they say; its table names what is read."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.support.docs_helpers import code_blocks, commands_of, page_text
from tests.support.nsys_export_maker import training
from tests.support.nsys_report_maker import steps
from tracelens_ext.cli import run
from tracelens_ext.readers.nsys import export_schema, export_trace

_TEXT = page_text("nsight-systems.md").partition("\n## GPU time by class of kernel\n")[
    0
]
_COMMANDS = commands_of(_TEXT)
_PYTHON = code_blocks(_TEXT, "python")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("run.sqlite", "other.sqlite"):
        training().write(tmp_path / name)
    for name in ("run.nsys-rep", "other.nsys-rep"):
        (tmp_path / name).write_bytes(steps())


def test_there_are_examples() -> None:
    assert len(_COMMANDS) == 9
    assert len(_PYTHON) == 1


@pytest.mark.parametrize("command", [c for c in _COMMANDS if "--nsys" not in c])
def test_commands(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(shlex.split(command)) == 0
    assert capsys.readouterr().out


@pytest.mark.process
def test_a_report_that_nsys_converts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (command,) = (c for c in _COMMANDS if "--nsys" in c)
    Path("run.nsys-rep").write_bytes(b"a report")
    program = Path("nsys").absolute()
    program.write_text(
        "#!/bin/sh\nfor word; do case $word in --output=*) out=${word#*=};; esac; "
        'done\ncat run.sqlite > "$out"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    arguments = [
        str(program) if word.endswith("/nsys") else word
        for word in shlex.split(command)
    ]
    assert run(arguments) == 0
    assert "gemm" in capsys.readouterr().out


def test_python() -> None:
    names: dict[str, object] = {}
    exec(_PYTHON[0], names)  # noqa: S102  # an example of the documentation
    assert "analyzer" in names


def test_the_table_names_what_is_read() -> None:
    listed = re.findall(r"`((?:CUPTI_|NVTX_|CUBLAS_|CUDNN_)[A-Z_]+)`", _TEXT)
    read = {*export_trace._CUDA_TABLES, *export_trace._LIBRARIES, export_schema.NVTX}
    assert {*listed, "CUPTI_ACTIVITY_KIND_MEMSET"} == read
