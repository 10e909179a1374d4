"""Unescaped backslashes and unusual numbers are mended, and correct JSON is not changed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.trace_properties import SMALL_SLICE, result_of
from tracelens_ext.readers.lenient_json import length_before, mend_bytes, mend_text


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (r'"C:\kernels\q.cu"', r"C:\kernels\q.cu"),
        (r'"C:\user"', r"C:\user"),
        (r'"\u00e9\u12"', "é\\u12"),
        (r'"a\\b\c"', "a\\b\\c"),
        (r'"\new"', "\new"),
        (r'"\"\/"', '"/'),
        (r'"\ud83d\ude00"', "😀"),
    ],
)
def test_backslashes_and_numbers_are_mended(text: str, meant: str) -> None:
    assert json.loads(mend_text(text), strict=False) == meant
    assert mend_bytes(text.encode()) == mend_text(text).encode()


@given(st.text())
def test_correct_json_is_not_changed(value: str) -> None:
    text = json.dumps(value)
    assert mend_text(text) == text
    data = text.encode()
    assert mend_bytes(data) is data


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("[nan, -nan, inf, -inf]", "[NaN,  NaN, NaN,  NaN]"),
        ('{"a": inf}', '{"a": NaN}'),
        ("[infinity, -infinity]", "[Infinity, -Infinity]"),
        ("[NaN, -Infinity]", "[NaN, -Infinity]"),
        ('["nan", ": inf, \\" [nan"]', '["nan", ": inf, \\" [nan"]'),
        ('[nan, "cut off: nan', '[NaN, "cut off: nan'),
        ("[nano, info]", "[nano, info]"),
    ],
)
def test_numbers_of_cpp(text: str, meant: str) -> None:
    assert mend_text(text) == meant
    assert length_before(text, len(meant)) == len(text)


@pytest.mark.parametrize(
    "number", ["nan", "-nan", "inf", "-inf", "infinity", "NaN", "-Infinity"]
)
def test_numbers_that_json_lacks_become_null(number: str) -> None:
    text = f'[{{"a nan": {number}, "b": [1,{number}], "c": "x: {number}"}}]'
    meant = f'[{{"a nan": null, "b": [1,null], "c": "x: {number}"}}]'
    assert mend_bytes(text.encode()) == meant.encode()


@pytest.mark.parametrize("number", ["nan", "-inf", "NaN", "Infinity"])
def test_an_argument_that_is_not_a_number_counts_as_null(number: str) -> None:
    event = '{"ph": "X", "cat": "gpu_memcpy", "name": "n", "pid": 0, "tid": 7, "ts": 5, "dur": 2,'
    event += (
        ' "args": {"memory bandwidth (GB/s)": NUMBER, "bytes": NUMBER, "stream": 7}}'
    )
    events = ",\n".join([event] * 50)
    data = f"[{events}]".replace("NUMBER", number).encode()
    right = f"[{events}]".replace("NUMBER", "null").encode()
    assert result_of(data) == result_of(right)
    assert result_of(data, slice_bytes=SMALL_SLICE) == result_of(right)


@given(
    st.lists(st.sampled_from([r"\q", r"\\", r"\n", "a", "é", r"\u00e9", r"\u1", "\\"]))
)
def test_positions_in_mended_text_lead_back_to_the_original(pieces: list[str]) -> None:
    pieces = [f"{piece}|" for piece in pieces]  # so that no two make an escape together
    text = "".join(pieces)
    for count in range(len(pieces) + 1):
        before = "".join(pieces[:count])
        assert length_before(text, len(mend_text(before))) == len(before)


def _document(name: str, count: int) -> bytes:
    event = '{"ph": "X", "cat": "cpu_op", "name": "NAME", "pid": 1, "tid": 1, "ts": 5, "dur": 2}'
    return ("[" + ",\n".join([event.replace("NAME", name)] * count) + "]").encode()


@pytest.mark.parametrize("name", [r"C:\kernels\q.cu", r"\é\ ", r"\u12 }, {\"ph\": \q"])
def test_mended_text_is_read_with_slices_of_any_size(name: str) -> None:
    data = _document(name, 50)
    right = _document(json.dumps(json.loads(mend_text(f'"{name}"')))[1:-1], 50)
    assert result_of(data) == result_of(right)
    assert result_of(data, slice_bytes=SMALL_SLICE) == result_of(right)
