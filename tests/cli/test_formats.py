"""`tracelens-ext formats`: every reader is listed, with what it needs and how to record for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.cli import run
from tracelens_ext.readers.formats import offered_readers

if TYPE_CHECKING:
    import pytest


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
