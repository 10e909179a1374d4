"""What the docs say of CUDA graphs: the commands and the Python run, on a trace made for them."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.support.capture_helpers import Op, Recording
from tests.support.docs_helpers import code_blocks, page_text
from tracelens_ext.cli import run

LAYER = [Op("aten::mm", ["gemm"], 8), Op("vllm::attention", ["attend"], 8)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "capture_traces").mkdir()
    capture = Recording()
    decode = Recording()
    capture.capture(LAYER, annotation="capture_8_FULL")
    capture.write(tmp_path / "capture_traces" / "rank0.json")
    decode.launch("gemm", "attend", annotation="step[DECODE bs=8]")
    decode.write(tmp_path / "decode.json")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _blocks(language: str) -> list[str]:
    return code_blocks(page_text("cuda-graphs.md"), language)


def test_the_commands_of_the_page_look_into_the_graph(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = _blocks("console")
    commands = [shlex.split(line.removeprefix("$ ")) for line in block.splitlines()]
    assert [command[0] for command in commands] == ["tracelens-ext"] * 4
    for command in commands:
        assert run(command[1:]) == 0
        printed = capsys.readouterr().out
        assert command[1] == "kernels" or "vllm::attention" in printed
    assert (folder / "decode_perf_report.xlsx").exists()


@pytest.mark.usefixtures("folder")
def test_the_python_of_the_page_runs() -> None:
    (code,) = _blocks("python")
    names: dict[str, object] = {}
    exec(code, names)  # noqa: S102
    table = names["analyzer"].get_df_graph_operations()  # type: ignore[attr-defined]
    assert table["operation"].tolist() == ["aten::mm", "vllm::attention"]
