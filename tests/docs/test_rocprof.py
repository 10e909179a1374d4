"""The examples of docs/how-to/rocprof.md do what they say; its real table is that of the trace."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.support.docs_helpers import commands_of, page_text
from tests.support.rocprof_maker import training
from tests.support.rpd_maker import training as rpd_training
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.cli import run

_TEXT = page_text("rocprof.md")
_COMMANDS = commands_of(_TEXT)
_PREFILL = "prefill_kernel_trace.csv"
SHARED = Path(__file__).resolve().parents[3] / "shared" / "rocm" / "csv" / _PREFILL


def test_there_are_examples() -> None:
    assert len(_COMMANDS) == 9


@pytest.mark.parametrize("command", _COMMANDS)
def test_commands(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    training().write_rocpd(tmp_path / "run_results.db")
    training().write_json(tmp_path / "run_results.json")
    training().write_csv(tmp_path)
    training().write_csv(tmp_path, "prefill_")
    rpd_training().write(tmp_path / "run.rpd")
    assert run(shlex.split(command)) == 0
    assert capsys.readouterr().out


@pytest.mark.real_data
def test_the_real_table() -> None:
    rows = re.findall(
        r"^\| (.+?) \| ([\d.]+) \| ([\d.]+) \| (\d+) \|$", _TEXT, re.MULTILINE
    )
    table = TreePerfAnalyzer(
        SHARED, use_kernel_name_categories=True
    ).get_df_gpu_time_by_category()
    columns = ["kernel_category", "total_time_ms", "% of GPU time", "count"]
    found = [
        (name, f"{time:.3f}", f"{share:.1f}", str(count))
        for name, time, share, count in table[columns].itertuples(index=False)
    ]
    assert rows == found
