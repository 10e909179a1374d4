"""The compiled reader gives the result of the Python reader, with and without threads.

Where it was not built there is nothing to compare.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.support.make_trace import LAYOUTS, kineto_layout, short_demo
from tests.support.trace_properties import assert_same
from tracelens_ext.cli import run
from tracelens_ext.errors import TraceCutOffError, TraceFormatError
from tracelens_ext.readers import ahead, json_events, read_trace
from tracelens_ext.readers.kineto import PURE_PYTHON, compiled_reader
from tracelens_ext.readers.kineto.columns import Slice
from tracelens_ext.readers.kineto.reader import KinetoColumns
from tracelens_ext.settings import ReadingOptions

if TYPE_CHECKING:
    from types import ModuleType

    from tracelens_ext.trace import Trace

LIBRARY = compiled_reader()
pytestmark = pytest.mark.skipif(
    LIBRARY is None, reason="the compiled reader was not built"
)
DEMO = short_demo() | {"traceEvents": short_demo()["traceEvents"][:1200]}
FUZZ = Path(__file__).resolve().parents[2] / "fuzz" / "native.py"
SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"


def interned(column: Any, found: Slice, name: str) -> Any:
    """Return a column of a slice with codes that do not depend on the spelling of texts."""
    if name in ("tracks", "names", "words"):
        return list(dict.fromkeys(column))
    if name in ("track", "name"):
        values: list[Any] = getattr(found, f"{name}s")
        return [values[code] for code in column.tolist()]
    if name in ("numbers", "texts"):
        words = found.words if name == "texts" else None
        pairs = ((rows.tolist(), of_rows.tolist()) for rows, of_rows in column.values())
        told = [(rows, [words[c] for c in of] if words else of) for rows, of in pairs]
        return dict(zip(column, told, strict=True))
    return column


class Both:
    """The two readers of slices, with all slices that they have read so far."""

    def __init__(self) -> None:
        library: ModuleType | None = LIBRARY
        assert library is not None
        self.native = KinetoColumns(library)
        self.python = KinetoColumns()

    def same(self, text: bytes) -> Slice:
        """Return the columns of a slice, after checking that both readers give the same."""
        found = self.native.parse(text)
        assert found is not None, text
        expected = self.python.decode(text)
        for name in Slice.__struct_fields__:
            one, other = (
                interned(getattr(each, name), each, name) for each in (found, expected)
            )
            assert_same(one, other)
        return found


NUMBERS = (
    "0",
    "-0",
    "7",
    "-7",
    "12.5",
    "-0.0005",
    "0.0005",
    "-0.0015",
    "1.2345",
    "-1.23456",
    "null",
    "1712195495519689.047",
    "1712195495519689.0475",
    "1712195495519689.047499999",
    "0.999999999",
    "0.9999999999",
    "1.00000000000000000000000005",
    "1e3",
    "-1E-3",
    "1.5e2",
    "7.0",
    "7.5",
    '"12"',
    '"1.5"',
    '"-3"',
    '" 4 "',
    '"1_0"',
    '"x"',
    '""',
    '"null"',
    "true",
    "[]",
    "{}",
    "[1]",
    "9223372036854775806",
    "9223372036854775807",
    "-9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "9223372036854775.806",
    "9223372036854775.807",
    "9223372036854775.8",
    "18446744073709551616",
    "99999999999999999999",
    "123456789012345678901234567890.5",
    "9000000000000000",
    "-9000000000000000",
    "-9000000000000001",
    "1e15",
    "1e99",
    "10" + "0" * 40,
)


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_in_any_notation_are_equal_in_both_readers(number: str) -> None:
    both = Both()
    plain = '{"ph":"X","cat":"kernel","ts":5.125,"dur":2,"args":{"stream":7,"bytes":3}}'
    args = f'"args":{{"correlation":{number},"stream":7,"External id":{number}}}'
    odd = f'{{"ph":"X","cat":"kernel","ts":{number},"dur":{number},{args}}}'
    flow = f'{{"ph":"s","id":{number},"ts":1}}'
    for events in ([odd], [plain, odd, flow, plain], [flow, plain, odd, odd]):
        both.same(f"[{','.join(events)}]".encode())


TAKEN = (
    "[]",
    " [ ] ",
    "[{}]",
    "[{},{}]",
    '[{"ph":""}]',
    '[{"ph":"M"}]',
    '[{"ph":"B","ts":1}]',
    '[{"ph":"B","cat":"Kernel","ts":1,"args":{"correlation":1,"stream":7}},{"ph":"E","ts":2}]',
    '[{"ph":"B","cat":"cpu_op","args":{"Input Dims":[[1]]}},{"ph":"E","args":{"bytes":1}}]',
    '[{"ph":"X","cat":"mtia_ccp_events"},{"ph":"X","cat":"hpu_op"},{"ph":"X","cat":"xpu_driver"}]',
    '[{"ph":"C","cat":"counters","name":"x","ts":1,"args":{"x":1}},{"ph":"b"},{"ph":"n"}]',
    '[{"ph":"X","cat":"KeRnEl","ts":1,"dur":2}, {"ph":"X","cat":"other","args":{"correlation":1}}]',
    '[{"ph":"X","name":"a","ts":1},{"ph":"X","name":"\\u0061","ts":1},{"ph":"X","name":"","ts":1}]',
    '[{"ph":"X","name":"\\ud83d\\ude80 \\"q\\" \\\\ \\/","ts":1},{"ph":"X","name":"é🚀","ts":1}]',
    '[{"ph":"X","name":"\\u0000","pid":"1","tid":1},{"ph":"X","pid":1,"tid":"\\u0031"}]',
    '[{"ph":"i","ts":1,"name":"[memory]","args":{"Addr":5,"Bytes":-5,"Device Id":null}}]',
    '[{"ph":"s","id":7},{"ph":"f","id":8,"bp":"e"},{"ph":"t","id":9,"dur":-3},{"ph":"s"}]',
    '[{"ph":"M","name":"process_name","pid":"a","args":{"name":"\\ud83d\\ude80","labels":""}}]',
    '[{"ph":"M","name":"thread_name","pid":-4,"tid":5,"args":{"name":7,"labels":["a"]}}]',
    '[{"ph":"X","cat":"cpu_op","args":{"Input Dims":[[1, 2]],"Input type":null,"dtype":"a"}}]',
    '[{"ph":"X","cat":"cpu_op","args":{"Input type":["a"],"Concrete Inputs":[""]}}]',
    '[{"ph":"X","cat":"cpu_op","args":{"Input Dims":null,"Input type":"\\u00e9","kernel":1}}]',
    """[{"ph":"X","cat":"kernel","args":{"Collective name":"a","dtype":"b","Sequence number":1}},
    {"ph":"X","cat":"cpu_op","args":{"Collective name":"c","Group size":2,"dtype":"b"}}]""",
    '[{"ph":"X","cat":"cuda_runtime","args":{"kernel":"k","x":{"a":[{}, 1.5e-7]}}}]',
    '[{"ph":"X","cat":"python_function","args":{"Python id":1,"Python parent id":null}}]',
    '[{"ph":"X","args":{"deep":' + "[" * 40 + "]" * 40 + "}}]",
    '[{"ph":"X","name":"'
    + "n" * 5000
    + '","cat":"'
    + "c" * 100
    + '","'
    + "k" * 99
    + '":[true]}]',
)


@pytest.mark.parametrize("text", TAKEN)
def test_usual_slices_are_equal_in_both_readers(text: str) -> None:
    """The readers also agree on a later slice, whose codes continue those of the earlier one."""
    both = Both()
    both.same(text.encode())
    both.same(TAKEN[-3].encode())
    both.same(text.encode().replace(b",", b" ,\t\n").replace(b":", b" :\r "))


REFUSED = (
    "",
    " ",
    "{}",
    "[",
    "]",
    "[{]",
    "[{}",
    "[{},]",
    "[,{}]",
    "[{}]x",
    "[{}}",
    "[{}{}]",
    "[[]]",
    "[1]",
    '[{"ph"}]',
    '[{"ph":}]',
    '[{"ph":"X",}]',
    '[{"ph":"X" "ts":1}]',
    "[{'ph':1}]",
    "[{ph:1}]",
    '[{"ts":01}]',
    '[{"ts":+1}]',
    '[{"ts":.5}]',
    '[{"ts":5.}]',
    '[{"ts":-}]',
    '[{"ts":1e}]',
    '[{"ts":NaN}]',
    '[{"ts":Infinity}]',
    '[{"ts":nul}]',
    '[{"ts":tru',
    '[{"ts":1e400}]',
    '[{"name":"a\nb"}]',
    '[{"name":"a\x00b"}]',
    '[{"name":"\\q"}]',
    '[{"name":"\\u12g4"}]',
    '[{"name":"\\ud800"}]',
    '[{"name":"\\udc00"}]',
    '[{"name":"\\ud800\\u0041"}]',
    '[{"x":"\\"}]',
    '[{"name":5}]',
    '[{"cat":null}]',
    '[{"ph":["X"]}]',
    '[{"args":null}]',
    '[{"args":[]}]',
    '[{"pid":1.5}]',
    '[{"tid":null}]',
    '[{"pid":[1]}]',
    '[{"pid":99999999999999999999}]',
    '[{"ph":"X","ph":"X"}]',
    '[{"args":{"stream":1,"stream":2}}]',
    '[{"args":{},"args":{}}]',
    '[{"\\u0070h":"X"}]',
    '[{"args":{"stre\\u0061m":1}}]',
    '[{"ph":"X","cat":"\u212aernel"}]',
    '[{"ph":"X","cat":"\\u006bernel"}]',
    '[{"ph":"\\u0058"}]',
    '[{"args":{"a":[1 2]}}]',
    '[{"a":' + "[" * 3000 + "]" * 3000 + "}]",
    '[{"a":[}]',
    '[{"a":{"b"}}]',
    '[{"a":{1:2}}]',
)


@pytest.mark.parametrize("text", REFUSED)
def test_unusual_slices_are_left_to_python(text: str) -> None:
    assert Both().native.parse(text.encode()) is None


@pytest.mark.parametrize(
    "text", [b'[{"name":"\xff"}]', b'[{"pid":"\xc3"}]', b'[{"ph":"i","cat":"\x80"}]']
)
def test_bytes_that_are_not_utf_8_are_left_to_python(text: bytes) -> None:
    assert Both().native.parse(text) is None


def test_every_beginning_of_a_slice_is_refused() -> None:
    whole = TAKEN[12].encode()
    native = Both().native
    for length in range(len(whole)):
        assert native.parse(whole[:length]) is None


@pytest.mark.real_data
def test_recorded_traces_are_equal_in_both_readers() -> None:
    for path in sorted(SHARED.glob("*/*.json.gz")):
        events = msgspec.json.decode(gzip.decompress(path.read_bytes()))["traceEvents"]
        both = Both()
        for start in range(0, min(len(events), 20_000), 4000):
            both.same(msgspec.json.encode(events[start : start + 4000]))


# Whole files.


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use many slices, and threads even for small files."""
    monkeypatch.setattr(ahead, "WORTHWHILE_BYTES", 0)
    monkeypatch.setattr(json_events, "SLICE_BYTES", 1 << 14)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[Slice | None]:
    """The results of the compiled reader for all slices."""
    answers: list[Slice | None] = []
    parse = KinetoColumns.parse

    def noted(self: KinetoColumns, text: bytes) -> Slice | None:
        answers.append(parse(self, text))
        return answers[-1]

    monkeypatch.setattr(KinetoColumns, "parse", noted)
    return answers


def by_all(
    path: Path, monkeypatch: pytest.MonkeyPatch, *, allow_truncated: bool = False
) -> Trace:
    """Return a trace after checking that Python, compiled code and threads give the same one."""
    monkeypatch.setenv(PURE_PYTHON, "1")
    expected = read_trace(
        path, reading=ReadingOptions(jobs=1, allow_truncated=allow_truncated)
    )
    monkeypatch.delenv(PURE_PYTHON)
    for jobs in (1, 2, 3):
        reading = ReadingOptions(jobs=jobs, allow_truncated=allow_truncated)
        assert_same(read_trace(path, reading=reading), expected)
    return expected


@pytest.mark.usefixtures("small_slices")
@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_both_readers_give_equal_traces(
    layout: str,
    zipped: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    parsed: list[Slice | None],
) -> None:
    path = tmp_path / "trace.json"
    data = LAYOUTS[layout](DEMO).encode()
    path.write_bytes(gzip.compress(data, 1) if zipped else data)
    trace = by_all(path, monkeypatch)
    taken = sum(answer.count for answer in parsed if answer is not None)
    assert taken > 3 * 0.99 * trace.provenance.present


def odd_demo() -> str:
    """Return the demo trace with unusual events of many kinds in it."""
    events = [dict(event) for event in DEMO["traceEvents"]]
    wrong: list[Any] = [7, None, "text", [], {"ph": "X"}, {"name": "no phase"}]
    for place in range(100, len(events), 200):
        odd = place // 200 % 8
        if odd < len(wrong):
            events.insert(place, wrong[odd])
        else:
            events[place] |= {"ts": "HERE"} if odd == 6 else {"pid": [1], "name": 5}
    return kineto_layout(DEMO | {"traceEvents": events}).replace('"HERE"', "NaN")


@pytest.mark.usefixtures("small_slices")
def test_unusual_events_are_equal_in_both_readers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parsed: list[Slice | None]
) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(odd_demo().encode().replace(b"aten::mm", b"aten::\xff\xfe", 3))
    trace = by_all(path, monkeypatch)
    assert set(trace.provenance.dropped) >= {"not a JSON object", "no phase (ph)"}
    assert None in parsed, "a slice was refused"
    assert any(parsed), "and others not"


@pytest.mark.usefixtures("small_slices")
def test_decoding_ahead_is_given_up_in_an_unusual_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse = KinetoColumns.parse
    main = threading.main_thread()
    ahead_of_turn = []

    def noted(self: KinetoColumns, text: bytes) -> Slice | None:
        answer = parse(self, text)
        if threading.current_thread() is not main:
            ahead_of_turn.append(answer)
        return answer

    monkeypatch.setattr(KinetoColumns, "parse", noted)
    events = [dict(event) | {"name": "HERE"} for event in DEMO["traceEvents"]]
    path = tmp_path / "trace.json"
    path.write_text(
        kineto_layout(DEMO | {"traceEvents": events}).replace('"HERE"', "NaN")
    )
    by_all(path, monkeypatch)
    assert set(ahead_of_turn) == {None}
    assert len(ahead_of_turn) <= 2 * 17 * 6
    assert path.stat().st_size >> 14 > 17, "more slices than are tried"


@pytest.mark.usefixtures("small_slices")
def test_an_event_that_is_larger_than_a_slice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = list(DEMO["traceEvents"])
    half = len(events) // 2
    huge = events[half] | {"args": {"Input Dims": [[1, 2, 3]] * 30_000}}
    path = tmp_path / "trace.json"
    path.write_text(
        kineto_layout(DEMO | {"traceEvents": [*events[:half], huge, *events[half:]]})
    )
    by_all(path, monkeypatch)


@pytest.mark.usefixtures("small_slices")
@pytest.mark.parametrize("allow_truncated", [False, True])
@pytest.mark.parametrize(
    "damage", ["cut off", "cut gzip", "garbage", "two documents", "check sum"]
)
def test_damaged_slices_are_equal_in_both_readers(
    damage: str, allow_truncated: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = kineto_layout(DEMO).encode()
    place = data.index(b'"ph"', len(data) * 2 // 3)
    if damage == "garbage":
        data = data[:place] + b"%%" + data[place:]
    elif damage == "two documents":
        data *= 2
    data = (
        gzip.compress(data, 1)
        if damage in ("cut gzip", "check sum", "two documents")
        else data
    )
    if damage.startswith("cut"):
        data = data[: len(data) * 2 // 3]
    elif damage == "check sum":
        data = data[:-8] + bytes(4) + data[-4:]
    path = tmp_path / "trace.json"
    path.write_bytes(data)
    if allow_truncated:
        trace = by_all(path, monkeypatch, allow_truncated=True)
        assert trace.provenance.notes[0].startswith("Salvaged (")
        return
    messages = set()
    for pure, jobs in (("1", 1), ("0", 1), ("0", 2)):
        monkeypatch.setenv(PURE_PYTHON, pure)
        with pytest.raises(TraceFormatError) as caught:
            read_trace(path, reading=ReadingOptions(jobs=jobs))
        messages.add(str(caught.value))
    (message,) = messages
    assert "--allow-truncated" in message


@pytest.mark.usefixtures("small_slices")
def test_no_thread_is_left_behind(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(kineto_layout(DEMO).encode(), 1))
    seen: set[str] = set()

    def interrupted(done: int, _size: int | None) -> None:
        seen.update(thread.name for thread in threading.enumerate())
        if done > 1 << 14:
            raise KeyboardInterrupt

    reading = ReadingOptions(jobs=3)
    read_trace(path, reading=reading)
    assert set(threading.enumerate()) == before
    with pytest.raises(KeyboardInterrupt):
        read_trace(path, progress=interrupted, reading=reading)
    assert set(threading.enumerate()) == before
    path.write_bytes(path.read_bytes()[: 1 << 14])
    with pytest.raises(TraceCutOffError):
        read_trace(path, reading=reading)
    assert set(threading.enumerate()) == before
    assert any(name.startswith("tracelens-ext") for name in seen)


def test_small_traces_and_single_jobs_start_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        threading.Thread, "start", lambda *_: pytest.fail("a thread was started")
    )
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(DEMO))
    read_trace(path, reading=ReadingOptions(jobs=8))
    monkeypatch.setattr(ahead, "WORTHWHILE_BYTES", 0)
    read_trace(path, reading=ReadingOptions(jobs=1))


def test_the_version_names_the_reader_in_use(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.endswith(", native reader\n")
    monkeypatch.setenv(PURE_PYTHON, "1")
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.endswith(", Python reader\n")


@pytest.mark.process
def test_damaged_traces_under_sanitizers() -> None:
    """Fuzz for some seconds; `make fuzz` does more."""
    command = [sys.executable, str(FUZZ), "--seconds", "8", "--seed", "29"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode == 2:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
