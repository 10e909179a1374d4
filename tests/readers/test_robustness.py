"""Any file, correct or damaged, gives only TracelensErrors, loses no event, and is read alike."""

from __future__ import annotations

import gzip
import io
import random
from functools import cache
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import trace_properties as properties
from tests.support.broken_input_helpers import corpus
from tests.support.make_trace import LAYOUTS, Document, TraceMaker
from tests.support.strategies import damaged_files, rule_packs, trace_files, traces
from tests.support.trace_mutations import mutate
from tracelens_ext.categorize.rule_files import parse_pack
from tracelens_ext.categorize.rules import RulePack
from tracelens_ext.errors import TracelensError
from tracelens_ext.readers import ahead, read_trace
from tracelens_ext.readers.cache.store import TraceCache
from tracelens_ext.settings import ReadingOptions

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = [
    data
    for data in (path.read_bytes() for path in corpus() if path.suffix == ".json")
    if len(data) < 9000
]


@given(trace_files())
@settings(max_examples=40)
def test_a_correct_trace_is_read_completely(data: bytes) -> None:
    trace = read_trace(io.BytesIO(data))
    assert trace.provenance.dropped == {}
    properties.accounted_for(trace)
    properties.reading_is_safe_and_steady(data)


@given(traces())
@settings(max_examples=40)
def test_layout_makes_no_difference(document: Document) -> None:
    first, *others = (
        properties.result_of(layout(document).encode()) for layout in LAYOUTS.values()
    )
    for other in others:
        assert other == first
    assert properties.what_was_read(read_trace(document)) == first


@given(damaged_files())
@settings(max_examples=60)
def test_a_damaged_trace_gives_a_result_or_a_trace_error(data: bytes) -> None:
    properties.reading_is_safe_and_steady(data)
    properties.salvage_is_safe_and_steady(data)


@given(trace_files(), st.data())
@settings(max_examples=60)
def test_salvage_gives_what_comes_before_a_cut(
    data: bytes, choose: st.DataObject
) -> None:
    """Salvaging gives exactly the events before the cut, as they are in the whole file."""
    length = choose.draw(st.integers(1, len(data) - 1))
    reading = ReadingOptions(allow_truncated=True)
    whole = read_trace(io.BytesIO(data), reading=reading)
    try:
        part = read_trace(io.BytesIO(data[:length]), reading=reading)
    except TracelensError:
        return  # nothing that can be analysed comes before
    assert part.provenance.present <= whole.provenance.present
    count = len(part)
    assert (part.ts + part.base_ns == whole.ts[:count] + whole.base_ns).all()
    # An event that contains the next one is corrected, if the next one is there.
    assert (part.dur >= whole.dur[:count]).all()
    if not any("corrected" in note for note in whole.provenance.notes):
        assert (part.dur == whole.dur[:count]).all()
    assert [part.names[n] for n in part.name] == [
        whole.names[n] for n in whole.name[:count]
    ]
    if count < len(whole):
        salvaged = [
            note for note in part.provenance.notes if note.startswith("Salvaged ")
        ]
        assert len(salvaged) == 1


@given(damaged_files())
@settings(max_examples=40)
def test_a_report_of_a_damaged_trace_does_not_crash(data: bytes) -> None:
    properties.a_report_is_safe(data)


@pytest.mark.parametrize("seed", range(4))
def test_more_damage_to_the_broken_inputs(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(30):
        properties.reading_is_safe_and_steady(mutate(rng.choice(TEXTS), rng))


@given(rule_packs)
@settings(max_examples=200)
def test_damaged_rule_packs_are_read_or_refused_in_one_line(
    document: dict[str, Any],
) -> None:
    try:
        pack = parse_pack(document)
    except TracelensError as error:
        assert "\n" not in str(error)
        return
    assert isinstance(pack, RulePack)


# All ways of decoding give the same result.


@cache
def _large_text() -> bytes:
    """Return a document of several slices, with some unusual events."""
    maker = TraceMaker()
    for i in range(4000):
        maker.op(
            f"op {i % 50}", 10 * i, 9, external_id=i + 1, args={"Input Dims": [[i % 7]]}
        )
        maker.call("cudaLaunchKernel", 10 * i + 1, 2, correlation=i + 1)
        maker.kernel(f"kernel {i % 40}", 10 * i + 4, 3, correlation=i + 1, stream=i % 3)
        if i % 900 == 0:
            maker.add(
                {"ph": "X", "cat": "kernel", "name": "no time", "dur": None, "ts": i}
            )
            maker.process_name(i, "a\ud800")
    return LAYOUTS["kineto"](maker.document()).encode()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "zipped"),
    [("none", False), ("odd", True), ("cut", False), ("cut", True)],
)
def test_threads_make_no_difference(zipped: bool, damage: str, tmp_path: Path) -> None:
    text = _large_text()
    if damage == "odd":
        text = text.replace(b'"kernel 7"', b'"kernel \xff \\k"', 30)
    if damage == "cut":
        text = text[: len(text) * 2 // 3]
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(text, 1) if zipped else text)

    def read(jobs: int) -> tuple[object, ...]:
        reading = ReadingOptions(jobs=jobs, allow_truncated=True)
        return properties.what_was_read(read_trace(path, reading=reading))

    with mock.patch.object(ahead, "WORTHWHILE_BYTES", 0):
        assert read(2) == read(1)


@given(trace_files())
@settings(max_examples=15)
def test_the_cache_makes_no_difference(data: bytes) -> None:
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        path.write_bytes(data)
        cache = TraceCache(Path(folder) / "cache", worth_keeping=0)
        first = read_trace(path, cache=cache)
        again = read_trace(path, cache=cache)
        assert list((Path(folder) / "cache").iterdir())
        assert properties.what_was_read(again) == properties.what_was_read(first)
        assert again.provenance == first.provenance
