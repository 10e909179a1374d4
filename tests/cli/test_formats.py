"""`tracelens-ext formats`: every reader is listed, with what it needs and how to record for it."""

from __future__ import annotations

import pytest

from tracelens_ext.cli import run
from tracelens_ext.readers.formats import offered_readers


def test_every_reader_is_listed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = offered_readers()[0].item
    monkeypatch.setattr(first, "extra", "special")
    assert run(["formats"]) == 0
    out = capsys.readouterr().out
    for offered in offered_readers():
        assert f"{offered.item.name}\n" in out
        assert offered.item.how_to_record in out
    assert (
        "*.nsys-rep, *.qdrep\n    needs:   pip install 'tracelens-ext[special]'\n"
        in out
    )


def test_files_with_several_ranks_are_mentioned(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["formats"]) == 0
    kineto = capsys.readouterr().out.split("PyTorch profiler (Kineto) JSON\n")[1]
    first_lines = kineto.split("\nPyTorch")[0]
    assert "merged traces of several ranks" in first_lines
    assert "--rank N" in first_lines


@pytest.mark.parametrize("content", ["*.rpd", "NCCL flight recorder", "*.pickle"])
def test_files_beside_common_traces_are_listed(
    content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["formats"]) == 0
    assert content in capsys.readouterr().out
