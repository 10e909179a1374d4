"""What a fleet takes along of a user's rules."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tracelens_ext.fleet.portable_rules import PortableRules

if TYPE_CHECKING:
    from pathlib import Path


def test_only_maps_are_taken_out_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "def.json").write_text(json.dumps({"DEF": {"ABC": {"a": "b"}}}), encoding="utf-8")
    (tmp_path / "trace.json").write_text('{"traceEvents": []}', encoding="utf-8")
    assert [name for name, _ in PortableRules.of((), "DEF:ABC", [tmp_path]).maps] == ["def.json"]


def test_packs_that_are_switched_off_are_part_of_what_is_asked() -> None:
    without = PortableRules.of((), None, (), ["gemm"])
    assert without.options()["without_packs"] == ("gemm",)
    assert without.digest != PortableRules.of((), None, ()).digest
