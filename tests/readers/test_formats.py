"""All readers are registered through a hook, and the first that recognizes a file reads it."""

from __future__ import annotations

import io
import json
import re
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.readers.test_rocprof_results import database as database_of_rocprof
from tests.support import xplane_maker
from tests.support.categorize_helpers import FakeEntryPoint, plugin, registry
from tests.support.docs_helpers import page_text
from tests.support.make_trace import cuda_graph_example
from tests.support.nsys_export_maker import training
from tests.support.perfetto_maker import begin, end, thread_track, trace
from tests.support.rocprof_maker import RunMaker
from tests.support.rocprof_maker import training as rocprof_training
from tests.support.rpd_maker import training as rpd_training
from tests.support.statistics_helpers import GPU_TRACE
from tracelens_ext.errors import TraceFormatError
from tracelens_ext.hooks import PluginRegistry, Reader, hookimpl, load_registry
from tracelens_ext.readers import builtin, read_trace
from tracelens_ext.readers.formats import offered_readers, suffixes_of
from tracelens_ext.trace_files import trace_suffixes, traces_in

if TYPE_CHECKING:
    from tracelens_ext.trace import Trace

EVENT = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 2}


class LineReader(Reader):
    """Reads files that begin with its name, each as one kernel of that name."""

    def __init__(self, name: str, answer: Any = None) -> None:
        self.name = name
        self.answer = answer or {"traceEvents": [EVENT | {"name": f"by {name}"}]}

    def recognises(self, path: Path, head: bytes) -> bool:
        assert path.name == "trace.x"
        return head.startswith(self.name.encode())

    def read(self, path: Path) -> Any:
        assert path.name == "trace.x"
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def others(*readers: object, **more: Any) -> PluginRegistry:
    """Return a registry with the readers of this distribution and those of another plugin."""
    plugins = {"a": plugin(tracelens_readers=hookimpl(lambda: list(readers))), **more}
    own = FakeEntryPoint("readers", builtin, own=True)
    return PluginRegistry(
        [own, *(FakeEntryPoint(name, each) for name, each in plugins.items())]
    )


def samples(folder: Path) -> dict[str, Path]:
    """Return a file of each format that needs neither a plugin nor another program."""
    rocprof = rocprof_training()
    only_kernels = RunMaker()
    only_kernels.kernel("k", 10, 5, correlation=1)
    files = {
        "PyTorch profiler (Kineto) JSON": folder / "trace.json",
        "rocprofv3 database (rocpd)": rocprof.write_rocpd(folder / "run_results.db"),
        "rocmProfileData database (rpd)": rpd_training().write(folder / "run.rpd"),
        "rocprofv3 JSON": rocprof.write_json(folder / "run_results.json"),
        "rocprofv3 tables (CSV)": only_kernels.write_csv(folder),
        "rocprof results": database_of_rocprof(folder),
        "Perfetto trace": folder / "run.pftrace",
        "Nsight Systems SQLite export": folder / "run.sqlite",
        "nsys stats cuda_gpu_trace (CSV)": folder / "table.csv",
        "JAX/XLA profile": folder / "run.xplane.pb",
        "JAX/XLA viewer trace (JSON)": folder / "run.trace.json",
    }
    kineto, *_, perfetto, database, table, profile, viewer_json = files.values()
    perfetto.write_bytes(
        trace(thread_track(1, 2, 3, ""), begin(1, 1, "a", "cpu_op"), end(2, 1))
    )
    profile.write_bytes(xplane_maker.training().content)
    viewer_json.write_bytes(xplane_maker.training().for_viewers)
    kineto.write_text(json.dumps(cuda_graph_example()))
    training().write(database)
    table.write_text(GPU_TRACE)
    return files


def test_every_format_comes_through_the_hook(tmp_path: Path) -> None:
    ours = [each.item for each in offered_readers(load_registry(plugins=False))]
    assert [reader.name for reader in ours] == [
        "Nsight Systems report",
        "rocprof results",
        "rocprofv3 database (rocpd)",
        "rocmProfileData database (rpd)",
        "rocprofv3 JSON",
        "rocprofv3 tables (CSV)",
        "Nsight Systems SQLite export",
        "nsys stats cuda_gpu_trace (CSV)",
        "JAX/XLA profile",
        "Perfetto trace",
        "JAX/XLA viewer trace (JSON)",
        "PyTorch profiler (Kineto) JSON",
    ]
    files = samples(tmp_path)
    assert files.keys() | {"Nsight Systems report"} == {reader.name for reader in ours}
    for name, path in files.items():
        assert read_trace(path).provenance.format.startswith(name)
        with pytest.raises(TraceFormatError, match="has no reader"):
            read_trace(path, registry=registry())
        with path.open("rb") as file:
            assert len(read_trace(file)) == len(read_trace(path))
    assert all(reader.how_to_record for reader in ours)


def test_folders_list_the_files_that_a_reader_recognizes(tmp_path: Path) -> None:
    (tmp_path / "text.json").write_text("hello")
    for each in offered_readers():
        for suffix in suffixes_of(each.item):
            assert suffix in trace_suffixes()
            (tmp_path / f"x{suffix.upper()}").write_text("{}")
    (tmp_path / "table.csv").touch()
    found = {path.name for path in traces_in(tmp_path)}
    # Of a report and its export of one name it is the export.
    expected = {"text.json", "x.SQLITE", "x.JSON", "x.JSON.GZ", "x.XPLANE.PB"}
    expected |= {
        "x.RPD",
        "x.RPD.GZ",
        "x_RESULTS.DB",
        "xRESULTS.DB",
        "xKERNEL_TRACE.CSV",
    }
    assert found == expected | {"x.PFTRACE", "x.PFTRACE.GZ", "x.PERFETTO-TRACE"}


def test_a_folder_skips_databases_of_other_programs(tmp_path: Path) -> None:
    broken = Path(__file__).parents[1] / "broken_inputs"
    for name in (
        "other_database.sqlite",
        "damaged_header.sqlite",
        "only_the_magic.sqlite",
    ):
        (tmp_path / name).write_bytes((broken / name).read_bytes())
    samples(tmp_path)
    found = {path.name for path in traces_in(tmp_path)}
    rocprof = {"run_results.db"}  # of the three forms of one run
    others = {
        "trace.json",
        "run.sqlite",
        "damaged_header.sqlite",
        "only_the_magic.sqlite",
    }
    others |= {"results.db", "run.pftrace", "run.rpd"}
    assert found == rocprof | others | {"run.trace.json", "run.xplane.pb"}


def names_in(path: Path, content: str, plugins: PluginRegistry) -> list[str]:
    path.write_text(content)
    return read_trace(path, registry=plugins).names


def test_the_first_reader_that_recognises_a_file_reads_it(tmp_path: Path) -> None:
    more = hookimpl(priority=1)(lambda: [LineReader("xx")])
    torn = LineReader("y", ValueError("torn"))
    plugins = others(LineReader("x"), torn, z=plugin(tracelens_readers=more))
    path = tmp_path / "trace.x"
    assert names_in(path, "xx...", plugins) == ["by xx"]
    assert names_in(path, "x...", plugins) == ["by x"]
    assert plugins.problems == []
    for content in ("zzz", "y"):
        with pytest.raises(TraceFormatError, match="is not a trace in a known format"):
            names_in(path, content, plugins)
    assert plugins.problems == ["a: ValueError: torn"]


def test_plugins_cannot_take_over_supported_formats(tmp_path: Path) -> None:
    greedy = plugin(tracelens_readers=hookimpl(priority=99)(lambda: [LineReader("{")]))
    plugins = others(LineReader("["), greedy=greedy)
    path = tmp_path / "trace.x"
    assert names_in(path, json.dumps({"traceEvents": [EVENT]}), plugins) == ["k"]
    # What our own refuse is another matter; but not a trace that is cut off.
    assert names_in(path, '{"spans": []}', plugins) == ["by {"]
    with pytest.raises(TraceFormatError, match="ends prematurely"):
        names_in(path, json.dumps({"traceEvents": [EVENT]})[:-9], plugins)


def test_a_reader_may_return_a_trace_or_a_document(tmp_path: Path) -> None:
    path = tmp_path / "trace.x"
    path.write_text("x")
    trace: Trace = read_trace({"traceEvents": [EVENT]})
    for answer, form in ((trace, trace.provenance.format), (None, "read by a plugin")):
        made = read_trace(path, registry=others(LineReader("x", answer))).provenance
        assert (made.path, made.format) == (str(path), form)
    plugins = others(LineReader("x", 7))
    with pytest.raises(TraceFormatError, match="is not a trace in a known format"):
        read_trace(path, registry=plugins)
    assert plugins.problems == ["a: x: int is not a trace"]
    with pytest.raises(TraceFormatError, match="contains no events"):
        read_trace(path, registry=others(LineReader("x", {"traceEvents": []})))


def test_a_reader_needs_no_base_class_and_may_take_the_bytes(tmp_path: Path) -> None:
    class Plain:
        name = "plain"

        def recognises(self, path: Path, head: bytes) -> bool:
            return head.startswith(b"x") and path.name == "trace.x"

        def read_source(self, source: Any) -> Any:
            return {"traceEvents": [EVENT | {"name": source.read_all().decode()}]}

    assert names_in(tmp_path / "trace.x", "xyz", others(Plain())) == ["xyz"]
    plugins = others(types.SimpleNamespace(recognises=print))
    assert len(offered_readers(plugins)) == len(builtin.tracelens_readers())
    assert "has no method 'read'" in plugins.problems[0]


def test_open_files_need_a_reader_that_reads_bytes() -> None:
    class Own(LineReader):
        def recognises(self, path: Path, head: bytes) -> bool:
            assert path.name == "<file>"
            return head.startswith(b"x")

    own = plugin(tracelens_readers=hookimpl(lambda: [Own("of lines")]))
    plugins = PluginRegistry([FakeEntryPoint("own", own, own=True)])
    with pytest.raises(
        TraceFormatError, match="an open file of the format of lines; give its path"
    ):
        read_trace(io.BytesIO(b"x"), registry=plugins)


def test_the_documented_example_of_a_reader_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example is a new file and a registration: the diff on the page is applied."""
    text = page_text("architecture.md").partition("### Adding a reader")[2]
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    diff = re.findall(r"```diff\n(.*?)```", text, re.DOTALL)[0]
    module = types.ModuleType("tracelens_ext.readers.kernel_list")
    exec(code, module.__dict__)  # noqa: S102  # an example of the documentation
    monkeypatch.setitem(sys.modules, module.__name__, module)
    source = Path(builtin.__file__).read_text("utf-8")
    for part in diff.split("@@\n")[1:]:
        lines = part.splitlines(keepends=True)
        old = "".join(line[1:] for line in lines if line[0] in " -")
        assert source.count(old) == 1, old
        source = source.replace(
            old, "".join(line[1:] for line in lines if line[0] in " +")
        )
    patched = types.ModuleType("patched")
    monkeypatch.setitem(sys.modules, "patched", patched)
    exec(source, patched.__dict__)  # noqa: S102  # the same
    plugins = PluginRegistry([FakeEntryPoint("readers", patched, own=True)])
    assert plugins.problems == []
    path = tmp_path / "run.kernels"
    path.write_text("# kernel list\n1000,5,f<a, b>\n1007,2,g\n")
    trace = read_trace(path, registry=plugins)
    assert (trace.names, trace.ts.tolist(), trace.dur.tolist()) == (
        ["f<a, b>", "g"],
        [0, 7],
        [5, 2],
    )
    assert trace.provenance.format == "kernel list"
    assert next(suffixes_of(each.item) for each in offered_readers(plugins)) == (
        ".kernels",
    )
