"""The example of a performance model in `architecture.md` is one file and one line."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.docs_helpers import documented_addition
from tracelens_ext.roofline import models
from tracelens_ext.roofline.operation import Operation

if TYPE_CHECKING:
    import pytest


def test_adding_a_model_is_one_file_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, new, before, after = documented_addition("roofline", "models.py")
    (tmp_path / file).write_text(new, encoding="utf-8")
    full_name = f"tracelens_ext.roofline.{Path(file).stem}"
    spec = importlib.util.spec_from_file_location(full_name, tmp_path / file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, full_name, module)
    spec.loader.exec_module(module)

    source = inspect.getsource(models)
    assert source.count(before) == 1
    names_after = re.findall(r'"(\w+)"', after)
    assert names_after[:-1] == re.findall(r'"(\w+)"', before)
    monkeypatch.setattr(models, "_FAMILIES", (*models._FAMILIES, names_after[-1]))
    model: Any = models.tracelens_performance_models()["acme::scale_rows"]
    cost = model(Operation("acme::scale_rows", ((4, 3), (4,)), ("float", "float")))
    assert (cost.flops, cost.bytes, cost.data_type) == (12, 4 * (12 + 4 + 12), "fp32")
