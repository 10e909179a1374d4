"""A document gives the same events for all layouts, sizes of slices, and names."""

from __future__ import annotations

import gzip
import io
import json
import time
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.make_trace import (
    LAYOUTS,
    Document,
    cuda_graph_example,
    kineto_layout,
    one_line_layout,
)
from tracelens_ext.errors import TraceCutOffError, TraceFormatError
from tracelens_ext.readers import json_text, read_trace
from tracelens_ext.readers.json_events import EventStream
from tracelens_ext.readers.source import ByteSource

Json = dict[str, Any]

EVENT: Json = {
    "ph": "X",
    "cat": "cpu_op",
    "name": "a",
    "pid": 1,
    "tid": 1,
    "ts": 1,
    "dur": 2,
}


class StrictDecoder:
    """Decodes events to dictionaries with numbers as texts; refuses and repairs unusual ones."""

    def __init__(self) -> None:
        self.repaired: list[object] = []

    def decode(self, text: bytes) -> list[Json]:
        msgspec.json.decode(text, type=list[dict[str, Any]])  # strict: raises
        found: list[Json] = json.loads(
            text, parse_int=str, parse_float=str, strict=False
        )
        if any("odd" in event for event in found):
            raise msgspec.ValidationError
        return found

    def repair(self, events: list[object]) -> list[Json]:
        self.repaired += events
        return [event for event in events if isinstance(event, dict)]


def stream_of(
    data: bytes, slice_bytes: int, decoder: StrictDecoder
) -> EventStream[list[Json]]:
    return EventStream(ByteSource(io.BytesIO(data)), decoder, slice_bytes)


def events_of(
    data: bytes, slice_bytes: int = 1 << 19
) -> tuple[list[Json], dict[str, object]]:
    stream = stream_of(data, slice_bytes, StrictDecoder())
    events = [event for batch in stream for event in batch]
    assert stream.found_events
    return events, stream.members


def expected(document: Document) -> tuple[list[Json], dict[str, object]]:
    """Return the events (numbers as texts) and members that the standard library decodes."""
    text = json.dumps(document)
    members = json.loads(text)
    del members["traceEvents"]
    return json.loads(text, parse_int=str, parse_float=str)["traceEvents"], members


#: `make test` uses two layouts for tests with many cases.
SOME_LAYOUTS = [
    pytest.param(name, marks=pytest.mark.slow if name == "indented" else ())
    for name in LAYOUTS
]

# Names that look like the place between two events, or like the end of the array.
NASTY_NAMES = [
    '}, {"ph": "X"',
    '"}, {"ph": "X", "cat": "',
    "}, {",
    "]",
    '"]}',
    "[{",
    '\\"',
    "ends in a backslash \\",
    '\\\\", "ph',
    "é 日本 🚀",
    "\u2028 \xa0 \x85",
    "\x00\x01\x1f\x7f",
    "tab\t newline\n return\r",
    "",
]

names = st.sampled_from(NASTY_NAMES) | st.text(st.characters(codec="utf-8"), max_size=8)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | names
)
#: Arguments may contain arrays of objects that look like events.
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(names, inner, max_size=3)
        | st.lists(
            st.fixed_dictionaries({"ph": inner, "cat": inner}), min_size=2, max_size=3
        )
    ),
    max_leaves=6,
)
events = st.builds(
    lambda name, ts, args, odd, first: (
        ({"name": name} if first else {})
        | {"ph": "X", "cat": "cpu_op", "name": name, "ts": ts, "args": args}
        | ({"odd": True} if odd else {})
    ),
    names,
    st.integers(0, 10**16) | st.decimals(0, 10**9, places=3).map(float),
    st.dictionaries(names, values, max_size=2),
    st.booleans(),
    st.booleans(),
)
members = st.dictionaries(
    names.filter(lambda key: key != "traceEvents"), values, max_size=3
)
documents = st.builds(
    lambda before, found, after: before | {"traceEvents": found} | after,
    members,
    st.lists(events, max_size=6),
    members,
)


@given(documents, st.sampled_from(sorted(LAYOUTS)), st.booleans(), st.integers(1, 2000))
@settings(max_examples=150)
def test_every_layout_and_slice_gives_the_same_events(
    document: Document, layout: str, escaped: bool, slice_bytes: int
) -> None:
    text = LAYOUTS[layout](document)
    if not escaped:  # the same with the characters themselves in place of \uXXXX
        text = json.dumps(
            document, ensure_ascii=False, indent=1 if layout == "indented" else None
        )
    assert events_of(text.encode(), slice_bytes) == expected(document)


@given(documents, st.integers(1, 50))
@settings(max_examples=60)
def test_slices_smaller_than_an_event(document: Document, slice_bytes: int) -> None:
    assert events_of(kineto_layout(document).encode(), slice_bytes) == expected(
        document
    )


@pytest.mark.parametrize("layout", SOME_LAYOUTS)
def test_slices_of_many_sizes(layout: str) -> None:
    document = {
        "schemaVersion": 123456,
        "ratio": -1.25e-3,
        "traceEvents": [EVENT | {"name": name} for name in NASTY_NAMES],
        "flags": [True, None, {"deep": "}, {"}],
        "last": 1234567890,
    }
    data = LAYOUTS[layout](document).encode()
    whole = expected(document)
    for slice_bytes in (
        *range(1, 200),
        *range(200, len(data) + 2, 5),
        len(data),
        len(data) + 1,
    ):
        assert events_of(data, slice_bytes) == whole


@given(st.lists(events, max_size=5), st.integers(1, 500))
def test_a_document_may_be_only_the_list_of_events(
    found: list[Json], slice_bytes: int
) -> None:
    data = json.dumps(found).encode()
    assert events_of(data, slice_bytes) == (expected({"traceEvents": found})[0], {})


def test_a_large_file_comes_in_slices() -> None:
    data = one_line_layout({"traceEvents": [EVENT] * 2000}).encode()
    stream = stream_of(data, 4096, StrictDecoder())
    sizes = [len(batch) for batch in stream]
    assert sum(sizes) == 2000
    assert max(sizes) <= 2 * 4096 // len(json.dumps(EVENT))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_slices_stay_small_if_the_first_event_has_another_first_key(
    layout: str,
) -> None:
    """In many files, metadata events come first, and have another first key."""
    metadata = {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "python"}}
    document = {"traceEvents": [metadata] * 3 + [EVENT] * 2000}
    stream = stream_of(LAYOUTS[layout](document).encode(), 4096, StrictDecoder())
    sizes = [len(batch) for batch in stream]
    assert sum(sizes) == 2003
    assert max(sizes) <= 2 * 4096 // len(json.dumps(EVENT))


def test_memory_depends_on_the_slice_and_not_on_the_file() -> None:
    size = 1 << 14
    data = kineto_layout({"traceEvents": [EVENT] * 15_000}).encode()
    source = ByteSource(io.BytesIO(data))
    tracemalloc.start()
    try:
        assert sum(map(len, EventStream(source, StrictDecoder(), size))) == 15_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < len(data) / 2


@pytest.mark.parametrize("slice_bytes", [64, 4096, 1 << 19])
def test_an_event_larger_than_a_slice(slice_bytes: int) -> None:
    huge = EVENT | {"args": {"list": [{"ph": "X", "cat": str(i)} for i in range(5000)]}}
    document = {"traceEvents": [EVENT, huge, EVENT, huge], "after": 1}
    assert events_of(one_line_layout(document).encode(), slice_bytes) == expected(
        document
    )


# Unusual events and documents.


@given(
    st.lists(events | scalars | st.lists(scalars, max_size=2), min_size=1, max_size=8),
    st.integers(1, 400),
)
def test_an_item_that_is_not_an_object_loses_no_other_event(
    found: list[Any], slice_bytes: int
) -> None:
    decoder = StrictDecoder()
    data = json.dumps({"traceEvents": found, "after": [1]}).encode()
    stream = stream_of(data, slice_bytes, decoder)
    kept = [event for batch in stream for event in batch]
    assert kept == [
        e for e in expected({"traceEvents": found})[0] if isinstance(e, dict)
    ]
    odd = [value for value in decoder.repaired if not isinstance(value, dict)]
    assert len(odd) == sum(not isinstance(value, dict) for value in found)
    assert stream.members == {"after": [1]}


def test_only_odd_events_are_repaired() -> None:
    """An unusual event among many is found by halving the slice, not by decoding one by one."""
    found = [EVENT | {"ts": i} for i in range(4000)]
    found[1234] |= {"odd": True}
    decoder = StrictDecoder()
    stream = stream_of(
        one_line_layout({"traceEvents": found}).encode(), 1 << 19, decoder
    )
    assert sum(map(len, stream)) == 4000
    assert len(decoder.repaired) < 500


@pytest.mark.parametrize(
    "constant", ["NaN", "Infinity", "-Infinity", "nan", "inf", "-inf"]
)
@pytest.mark.parametrize("slice_bytes", [1, 100, 1 << 19])
def test_numbers_that_json_lacks_are_accepted(constant: str, slice_bytes: int) -> None:
    text = json.dumps([EVENT | {"args": {"x": "HERE"}}] * 3).replace(
        '"HERE"', constant, 1
    )
    found, _ = events_of(text.encode(), slice_bytes)
    assert len(found) == 3
    assert str(found[0]["args"]["x"]) in ("None", "nan", "inf", "-inf")


@pytest.mark.parametrize("slice_bytes", [1, 100, 1 << 19])
def test_bytes_that_are_not_utf_8_are_accepted(slice_bytes: int) -> None:
    text = json.dumps([EVENT, EVENT | {"name": "HERE"}, EVENT], indent=1)
    for wrong in (b"\xff\xfe", b"\xe2\x82", b"\xed\xa0\x80", b"\xf0\x9f"):
        found, _ = events_of(text.encode().replace(b"HERE", wrong), slice_bytes)
        assert len(found) == 3
        assert found[1]["name"].encode("utf-8", "surrogateescape") == wrong


@pytest.mark.parametrize("slice_bytes", [1, 100, 1 << 19])
def test_a_lone_surrogate_is_accepted(slice_bytes: int) -> None:
    found, _ = events_of(
        json.dumps([EVENT, EVENT | {"name": "\ud800 x"}]).encode(), slice_bytes
    )
    assert [event["name"] for event in found] == ["a", "\ud800 x"]


@pytest.mark.parametrize("slice_bytes", [1, 100, 1 << 19])
def test_unescaped_control_characters_are_accepted(slice_bytes: int) -> None:
    text = json.dumps([EVENT, EVENT | {"name": "HERE"}, EVENT]).replace(
        "HERE", "a\n\t\x00b"
    )
    found, _ = events_of(text.encode(), slice_bytes)
    assert [event["name"] for event in found] == ["a", "a\n\t\x00b", "a"]


@pytest.mark.parametrize("slice_bytes", [1, 9, 1 << 19])
@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "traceEvents": [%s, %s,], "b": 2,}',
        '\ufeff \n\t{"a": 1, "traceEvents": [\n%s\n,\r\n%s\t] , "b": 2 } \n\n',
        '{"a": 1, "b": 2, "traceEvents": [%s, %s]}',
        '{"traceEvents": [%s, %s], "a": 1, "b": 2}',
        '{"a": 1, "traceEvents": [%s %s], "b": 2}',
    ],
    ids=[
        "trailing commas",
        "byte order mark and white space",
        "last",
        "first",
        "no comma",
    ],
)
def test_harmless_deviations_from_json_are_accepted(
    text: str, slice_bytes: int
) -> None:
    event = json.dumps(EVENT)
    found, others = events_of((text % (event, event)).encode(), slice_bytes)
    assert found == expected({"traceEvents": [EVENT, EVENT]})[0]
    assert others == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    "text", ["[]", " [ ] ", '{"traceEvents": []}', '{"traceEvents": [ ], "a": 1}']
)
def test_no_events(text: str) -> None:
    assert events_of(text.encode())[0] == []


@pytest.mark.parametrize("text", ["{}", '{"a": [1, 2]}', '{"traceEvents": null}'])
def test_a_document_without_events_has_members_only(text: str) -> None:
    stream = stream_of(text.encode(), 4, StrictDecoder())
    assert list(stream) == []
    assert not stream.found_events
    assert stream.members == json.loads(text)


# Documents that are cut off, damaged, or something else.


SMALL: Document = {
    "schemaVersion": 1,
    "scale": -1.5e3,
    "deviceProperties": [{"id": 0, "name": "GPU \u00e9 \U0001f680"}],
    "traceEvents": [
        EVENT | {"args": {"list": [{"ph": 1}, {"ph": 2}], "flag": True, "none": None}},
        EVENT | {"name": '}, {"ph": "X"\\ \U0001f680'},
    ],
    "late": [False, {"a": "]}"}],
    "traceName": "x.json",
}


@pytest.mark.parametrize("layout", SOME_LAYOUTS)
@pytest.mark.parametrize("slice_bytes", [16, 1 << 19])
def test_cut_off_at_every_byte(layout: str, slice_bytes: int) -> None:
    data = LAYOUTS[layout](SMALL).rstrip().encode()
    for length in range(1, len(data)):
        stream = stream_of(data[:length], slice_bytes, StrictDecoder())
        with pytest.raises(TraceCutOffError, match=r"ends prematurely, after [012] ev"):
            list(stream)


def test_cut_off_at_every_byte_without_escapes() -> None:
    data = json.dumps(SMALL, ensure_ascii=False).encode()
    for length in range(1, len(data)):
        with pytest.raises(TraceCutOffError):
            list(stream_of(data[:length], 1 << 19, StrictDecoder()))


def test_a_bare_list_cut_off_at_every_byte() -> None:
    data = json.dumps(SMALL["traceEvents"]).encode()
    for length in range(1, len(data)):
        with pytest.raises(TraceCutOffError):
            list(stream_of(data[:length], 1 << 19, StrictDecoder()))


@pytest.mark.parametrize(
    ("zipped", "every"),
    [(False, 4), pytest.param(False, 1, marks=pytest.mark.slow), (True, 1)],
)
def test_a_trace_cut_off_at_every_byte(zipped: bool, every: int) -> None:
    """`read_trace` raises one of two errors, and never returns a trace."""
    data = kineto_layout(cuda_graph_example()).rstrip().encode()
    data = gzip.compress(data) if zipped else data
    for length in range(0, len(data), every):
        with pytest.raises(
            (TraceCutOffError, TraceFormatError), match=r"^<file>: [^\n]+; [^\n]+$"
        ):
            read_trace(io.BytesIO(data[:length]))


@given(st.integers(0, 10**6), st.binary(min_size=1, max_size=3))
@settings(max_examples=200)
@example(at=1, wrong=b"\xef\xbb\xbf")
def test_damage_anywhere_gives_a_trace_error_or_nothing(at: int, wrong: bytes) -> None:
    data = kineto_layout(cuda_graph_example()).encode()
    at %= len(data)
    try:
        read_trace(io.BytesIO(data[:at] + wrong + data[at + len(wrong) :]))
    except TraceFormatError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("slice_bytes", [4096, 1 << 19])
@pytest.mark.parametrize(
    ("before", "after"), [(1, 1), (3000, 1), (3000, 3000), (1, 3000)]
)
def test_garbage_is_refused_with_its_byte(
    before: int, after: int, slice_bytes: int
) -> None:
    event = json.dumps(EVENT)
    good = '{"é": 1, "traceEvents": [' + f"{event}, " * before
    text = good + "garbage, " + f"{event}, " * after + event + "]}"
    place = len(good.encode())
    stream = stream_of(text.encode(), slice_bytes, StrictDecoder())
    with pytest.raises(TraceFormatError, match=rf"not valid JSON at byte {place:,} \("):
        list(stream)


def test_the_error_for_a_cut_counts_the_events_before_it() -> None:
    data = one_line_layout({"traceEvents": [EVENT] * 2000}).encode()
    for slice_bytes in (4096, 1 << 19):
        stream = stream_of(data[:-20], slice_bytes, StrictDecoder())
        with pytest.raises(
            TraceCutOffError, match="ends prematurely, after 1,999 events"
        ):
            list(stream)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("hello", "is not JSON"),
        ("12", "is not JSON"),
        ('"text"', "is not JSON"),
        ("{hello}", "is not valid JSON"),
        ("{'traceEvents': []}", "is not valid JSON"),
        ('{"a" 1}', "is not valid JSON"),
        ('{"a": 1 "b": 2}', None),
        ('{"a": tru}', "is not valid JSON"),
        ('{1: 2, "traceEvents": []}', "is not valid JSON"),
        ("[1, }]", "is not valid JSON"),
        ('[{"ph": "X",]', "is not valid JSON"),
        ("{}{}", "more data after the end"),
        ('{"traceEvents": []} x', "more data after the end"),
        ("[]]", "more data after the end"),
        ('{"traceEvents": []}\x00\x00', "more data after the end"),
    ],
)
@pytest.mark.parametrize("slice_bytes", [1, 1 << 19])
def test_text_that_is_not_a_document_is_refused(
    text: str, problem: str | None, slice_bytes: int
) -> None:
    stream = stream_of(text.encode(), slice_bytes, StrictDecoder())
    if problem is None:  # a comma that is missing is forgiven
        assert list(stream) == []
        return
    with pytest.raises(TraceFormatError, match=problem) as caught:
        list(stream)
    assert not isinstance(caught.value, TraceCutOffError)


def test_two_documents_in_one_file() -> None:
    data = kineto_layout(SMALL).encode()
    with pytest.raises(
        TraceFormatError, match="more data after the end of the JSON document"
    ):
        events_of(data + data)


@pytest.mark.parametrize("opening", ["[", '{"a": ', '[{"ph": '])
@pytest.mark.parametrize("depth", [5_000, 200_000])
def test_endless_nesting_is_refused(opening: str, depth: int) -> None:
    """Nesting in an event, in a member or instead of an event gives a TraceFormatError."""
    with pytest.raises(TraceFormatError, match=r"nested too deeply|ends prematurely"):
        list(stream_of(opening.encode() * depth, 1 << 19, StrictDecoder()))
    closed = (
        '[{"ph": "X", "args": '
        + "[" * depth
        + "]" * depth
        + "}, "
        + json.dumps(EVENT)
        + "]"
    )
    with pytest.raises(TraceFormatError, match="nested too deeply"):
        list(stream_of(closed.encode(), 1 << 19, StrictDecoder()))


def test_a_number_with_too_many_digits_is_refused() -> None:
    text = '{"traceEvents": [' + json.dumps(EVENT) + '], "x": ' + "1" * 5000 + "}"
    with pytest.raises(TraceFormatError, match="number that is too long"):
        events_of(text.encode())


@pytest.mark.parametrize("event", ["1,", "{},"])
def test_text_without_events_is_refused_quickly(event: str) -> None:
    """Eight times as much text takes about eight times as long."""

    def seconds(count: int) -> float:
        text = f'{{"traceEvents": [{event * count}1]}}'
        before = time.process_time()
        with pytest.raises(TraceFormatError, match="contains no event"):
            read_trace(io.BytesIO(text.encode()))
        return time.process_time() - before

    few = max(seconds(3_000), 0.005)
    assert seconds(24_000) < 24 * few


def test_an_endless_event_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_text, "MOST_VALUE_BYTES", 1 << 21)
    for text in ('{"traceEvents": [{"name": "%s"}]}', '{"x": "%s", "traceEvents": []}'):
        with pytest.raises(TraceFormatError, match="contains more than 64 MB of text"):
            read_trace(io.BytesIO((text % ("a" * (1 << 23))).encode()))


@pytest.mark.parametrize(
    ("text", "worthwhile"),
    [
        ('{"traceEvents": [', False),
        ('{"traceEvents": [{"ph": "X"', False),
        ('{"traceEvents": [oops', False),
        ('{"traceEvents": [], "x": ', False),
        ('{"traceEvents": [{"ph": "X", "ts": 1, "dur": 1}, {"ph', True),
        ('{"traceEvents": [{"ph": "X", "ts": 1, "dur": 1}, oops', True),
    ],
)
def test_salvaging_is_suggested_only_if_it_finds_events(
    text: str, worthwhile: bool
) -> None:
    with pytest.raises(TraceFormatError) as caught:
        read_trace(io.BytesIO(text.encode()))
    assert ("--allow-truncated" in caught.value.remedy) == worthwhile
