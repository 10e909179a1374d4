"""The demo: recordings that are shipped, and the command that copies them.

    python -m tests.cli.test_demo

writes the recordings anew, where the simulated job has changed.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import tracelens_ext.cli.demo_recordings
from tests.support.simulated_job import build_demo_trace, write_demo_trace
from tests.support.simulated_job.write import trace_text
from tracelens_ext.cli import run
from tracelens_ext.cli.demo_recordings import RANKS, is_demo_trace

SHIPPED: dict[str, dict[str, Any]] = {
    "nvidia": {},
    "nvidia_fixed": {"fixed": True},
    "amd": {"vendor": "amd", "steps": 4},
    **{f"nvidia_rank{rank}": {"rank": rank, "ranks": RANKS} for rank in range(RANKS)},
}
FOLDER = Path(tracelens_ext.cli.demo_recordings.__file__).parent


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nvidia", "nvidia_fixed", "amd", "nvidia_rank1"])
def test_what_is_shipped_is_what_the_simulated_job_writes(name: str) -> None:
    text = "".join(trace_text(build_demo_trace(**SHIPPED[name])))
    assert gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()).decode() == text


def test_all_recordings_together_stay_small() -> None:
    sizes = {path.name: path.stat().st_size for path in FOLDER.glob("*.json.gz")}
    assert set(sizes) == {f"{name}.json.gz" for name in SHIPPED}
    assert sum(sizes.values()) < 2.6e6


def test_command_writes_and_names_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["demo"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    (line,) = printed.out.splitlines()
    assert line.startswith("wrote demo_trace.json.gz (")
    assert line.endswith("next: tracelens-ext report demo_trace.json.gz")
    first = Path("demo_trace.json.gz").read_bytes()
    # Its own file it overwrites without being told to.
    assert run(["demo", "--vendor", "amd"]) == 0
    document = json.loads(gzip.decompress(Path("demo_trace.json.gz").read_bytes()))
    assert document["tracelens_ext_demo"] == {"vendor": "amd", "seed": 0, "steps": 4}
    assert Path("demo_trace.json.gz").read_bytes() != first


def test_command_writes_a_file_a_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["demo", "run/job.json", "--ranks", "2"]) == 0
    line = capsys.readouterr().out
    assert line.startswith("wrote run/job_rank0.json to job_rank1.json (")
    assert line.endswith("next: tracelens-ext fleet 'run/job_rank*.json' -o results\n")
    names = sorted(path.name for path in Path("run").iterdir())
    assert names == ["job_rank0.json", "job_rank1.json"]
    Path("run/job_rank1.json").write_text("precious")
    assert run(["demo", "run/job.json", "--ranks", "2"]) == 1
    assert Path("run/job_rank1.json").read_text() == "precious"


def test_the_fixed_job_no_longer_waits_for_its_data_loader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["demo", "slow.json.gz"]) == 0
    assert run(["demo", "fixed.json.gz", "--fixed"]) == 0
    capsys.readouterr()
    found = {}
    for name in ("slow", "fixed"):
        assert run(["findings", f"{name}.json.gz", "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        found[name] = [finding["id"] for finding in document["findings"]]
    assert found["slow"][0] == "dataloader"
    assert "dataloader" not in found["fixed"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"precious",
        gzip.compress(b'{"traceEvents": []}'),
        gzip.compress(b"x" * 99)[:-20],
    ],
    ids=["empty", "text", "trace", "cut off"],
)
@pytest.mark.parametrize("name", ["mine.json", "mine.json.gz"])
def test_command_leaves_other_files_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert not is_demo_trace(path)
    assert run(["demo", str(path)]) == 1
    assert path.read_bytes() == content
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert "--force" in printed.err
    assert run(["demo", str(path), "--force"]) == 0
    assert is_demo_trace(path)
    assert [item.name for item in tmp_path.iterdir()] == [name]


def test_command_refuses_folders_and_odd_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["demo", str(tmp_path)]) == 1
    assert run(["demo", str(tmp_path / "trace.txt")]) == 2
    assert run(["demo", "--vendor", "intel"]) == 2
    assert run(["demo", "--vendor", "amd", "--ranks", "2"]) == 2
    assert run(["demo", "--ranks", "5"]) == 2
    assert run(["demo", "--fixed", "--vendor", "amd"]) == 2
    assert run(["demo", "--fixed", "--ranks", "2"]) == 2
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []


if __name__ == "__main__":
    for name, arguments in SHIPPED.items():
        write_demo_trace(FOLDER / f"{name}.json.gz", **arguments)
