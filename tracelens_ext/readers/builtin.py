"""The formats that are read without a plugin, in the order in which they are asked.

They come through the same hook as a plugin's readers. A format that is recognized by more than its
first bytes comes before those that take whatever looks like theirs. What parses one is imported
when a file is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens_ext.errors import TraceFormatError
from tracelens_ext.hooks import Reader, hookimpl
from tracelens_ext.readers.source import SQLITE_MAGIC, ByteSource

if TYPE_CHECKING:
    from tracelens_ext.trace import Trace


@dataclass(kw_only=True)
class FormatReader(Reader):
    """A format, and the module of this package whose `read`, or `module:function`, reads a file."""

    name: str
    module: str
    fits: Callable[[Path, bytes], object]  #: `recognises`
    how_to_record: str
    suffixes: tuple[str, ...] = ()
    extra: str = ""

    def recognises(self, path: Path, head: bytes) -> bool:
        """Return True if a file is of this format."""
        return bool(self.fits(path, head))

    def read_source(self, source: ByteSource) -> Trace:
        """Read a file."""
        try:
            module, _, function = self.module.partition(":")
            reader = import_module(f"tracelens_ext.readers.{module}")
            trace: Trace = getattr(reader, function or "read")(source)
        except ImportError as error:
            if not (self.extra and (error.name or "").startswith("google")):
                raise
            problem = (
                "is a JAX profile, and reading it needs protobuf, which is not "
                "installed"
            )
            remedy = f"run: pip install 'tracelens-ext[{self.extra}]'"
            raise TraceFormatError(source.path, problem, remedy) from None
        return trace


def _is_database(module: str, name: str, path: Path, head: bytes) -> bool | None:
    """Return True if a file is an SQLite database of that class; None where that is unknown."""
    if not head.startswith(SQLITE_MAGIC):
        return False
    database = getattr(import_module(f"tracelens_ext.readers.{module}"), name)
    answer: bool | None = database.is_one(path)
    return answer


NSYS_REPORTS = (".nsys-rep", ".qdrep")
NSYS_EXPORTS = (".sqlite",)
ROCPD = ("_results.db",)
RPD = (".rpd", ".rpd.gz")
ROCPROF_JSON = ("_results.json", "_results.json.gz")
ROCPROF_TABLES = ("kernel_trace.csv",)
XPLANE = (".xplane.pb",)
XPLANE_JSON = (".trace.json.gz",)
_JSON = (".json", ".json.gz")
_PERFETTO = (".pftrace", ".perfetto-trace")

_NSYS = "nsys profile -t cuda,nvtx -o run PROGRAM"
_ROCPROF = "rocprofv3 --sys-trace"
_JAX = "with jax.profiler.trace('folder'): …"

_ROCPROF_JSON = re.compile(rb'[\xef\xbb\xbf\s]*\{\s*"rocprofiler-sdk-tool"\s*:')
#: Titles of tables of rocprofv3, and of those before it.
_ROCPROF_TABLES = re.compile(
    rb'[\xef\xbb\xbf]*"?[A-Z][A-Za-z]*(?:_[A-Z][A-Za-z]*)*"?,[^\n]*_Timestamp"?'
    rb'|"Index","KernelName",[^\n]*"BeginNs"|"Name","Calls","TotalDurationNs"'
)
_ROCPROF_RESULTS = re.compile(
    rb'[\xef\xbb\xbf\s]*\{\s*"traceEvents"\s*:.*?"name"\s*:\s*'
    rb'"(?:CPU H(?:IP|SA) API|COPY|GPU\d+|Markers and Ranges)"',
    re.DOTALL,
)
#: A profile of JAX begins with a plane: its id, if it is not 0, and its name.
_PLANE = re.compile(
    rb"\n[\x80-\xff]{0,9}[\0-\x7f](?:\x08[\x80-\xff]{0,9}[\0-\x7f])?\x12.(?:/host:|/device:)"
)
#: Planes, errors, warnings and names of hosts: what there is in a profile.
_PLANE_FIELDS = (b"\n", b"\x12", b"\x1a", b'"')
_PLANE_PROCESS = re.compile(rb'"name"\s*:\s*"/(?:host|device):')
#: A packet that begins with its time, sequence, clock, descriptor of a track or clock snapshot.
_PACKET = re.compile(
    rb"\n[\x80-\xff]{0,3}[\0-\x7f](?:[\x40\x50]|[\xd0\xe2]\x03|\x32[\0-\x7f]\n)"
)


def _named(path: Path, suffixes: tuple[str, ...]) -> bool:
    return path.name.lower().removesuffix(".gz").endswith(suffixes)


def _is_nsys_report(path: Path, head: bytes) -> bool:
    """Return True if the content is a report, or may be one and the name says so."""
    text = head.lstrip()
    if _named(path, NSYS_REPORTS):
        return bool(text) and not text.startswith((b"{", b"[", SQLITE_MAGIC))
    return text.startswith(b"NVIDIA Tegra Profiler Report")


def _is_nsys_table(_: Path, head: bytes) -> bool:
    """Return True if a file begins with a table of `nsys stats`, possibly after messages."""
    if head.startswith(b"{"):
        return False
    from tracelens_ext.readers.nsys.csv_tables import report_in

    return report_in(head) is not None


def _is_rocpd(path: Path, head: bytes) -> bool:
    """Return True if a file has the tables of rocpd; by its name if it is gzipped or damaged."""
    answer = _is_database(
        module="rocprof.rocpd", name="RocpdDatabase", path=path, head=head
    )
    if answer is not None:
        return answer
    return ".db" in path.suffixes


def _is_rpd(path: Path, head: bytes) -> bool:
    """Return True if a file has the tables of rocmProfileData; by its name if it is gzipped."""
    answer = _is_database(
        module="rocprof.rpd", name="RpdDatabase", path=path, head=head
    )
    return ".rpd" in path.suffixes if answer is None else answer


def _is_rocprof_results(path: Path, head: bytes) -> object:
    """Return True if a file is a database of rocprof, before rocprofv3, or its JSON."""
    is_json = _ROCPROF_RESULTS.match(head)
    return is_json or _is_database(
        module="rocprof.results", name="ResultsDatabase", path=path, head=head
    )


def _is_xplane(path: Path, head: bytes) -> object:
    """Return True if the content begins with a plane, or may and the name says so."""
    return (
        head.startswith(_PLANE_FIELDS) if _named(path, XPLANE) else _PLANE.match(head)
    )


def _is_perfetto(path: Path, head: bytes) -> object:
    """Return True if the content begins with a packet, or may and the name says so."""
    may_be = head and not head.lstrip().startswith((b"{", b"["))
    return may_be if _named(path, _PERFETTO) else _PACKET.match(head)


def _is_json(_: Path, head: bytes) -> bool:
    """Return True if a file begins like JSON; JSON that is not a trace is refused."""
    text = head.lstrip(b" \t\r\n\xef\xbb\xbf")
    # which UTF-16 has there
    return text.startswith((b"{", b"[")) and text[1:2] != b"\0"


READERS: list[Reader] = [
    FormatReader(
        name="Nsight Systems report",
        module="nsys.report",
        fits=_is_nsys_report,
        how_to_record=_NSYS,
        suffixes=NSYS_REPORTS,
    ),
    FormatReader(
        name="rocprof results",
        module="rocprof.results",
        fits=_is_rocprof_results,
        how_to_record="rocprof --hip-trace python train.py",
        suffixes=("results.db",),
    ),
    FormatReader(
        name="rocprofv3 database (rocpd)",
        module="rocprof.rocpd",
        fits=_is_rocpd,
        how_to_record=f"{_ROCPROF} -- python train.py",
        suffixes=ROCPD,
    ),
    FormatReader(
        name="rocmProfileData database (rpd)",
        module="rocprof.rpd",
        fits=_is_rpd,
        how_to_record="runTracer.sh -o run.rpd python train.py",
        suffixes=RPD,
    ),
    FormatReader(
        name="rocprofv3 JSON",
        module="rocprof.json_records",
        fits=lambda _, head: _ROCPROF_JSON.match(head),
        how_to_record=f"{_ROCPROF} --output-format json -- python train.py",
        suffixes=_JSON,
    ),
    FormatReader(
        name="rocprofv3 tables (CSV)",
        module="rocprof.csv_tables",
        fits=lambda _, head: _ROCPROF_TABLES.match(head),
        how_to_record=f"{_ROCPROF} --output-format csv -- python train.py",
        suffixes=ROCPROF_TABLES,
    ),
    FormatReader(
        name="Nsight Systems SQLite export",
        module="nsys.sqlite",
        fits=lambda *file: (
            _is_database("nsys.sqlite", "NsysDatabase", *file) is not False
        ),
        how_to_record=f"{_NSYS}, then nsys export --type sqlite run.nsys-rep",
        suffixes=NSYS_EXPORTS,
    ),
    FormatReader(
        name="nsys stats cuda_gpu_trace (CSV)",
        module="nsys.csv_trace",
        fits=_is_nsys_table,
        how_to_record=f"{_NSYS}, then nsys stats -r cuda_gpu_trace --format csv run.nsys-rep",
    ),
    FormatReader(
        name="JAX/XLA profile",
        module="xplane.reader",
        fits=_is_xplane,
        how_to_record=f"{_JAX} (folder/plugins/profile/…)",
        suffixes=XPLANE,
        extra="jax",
    ),
    FormatReader(
        name="Perfetto trace",
        module="perfetto.trace_assembly",
        fits=_is_perfetto,
        how_to_record="rocprofv3 --sys-trace --output-format pftrace, or PyTorch's CUPTI monitor",
        suffixes=(".pftrace", ".pftrace.gz", ".perfetto-trace"),
    ),
    FormatReader(
        name="JAX/XLA viewer trace (JSON)",
        module="xplane.viewer_json",
        fits=lambda _, head: (
            head.lstrip().startswith(b"{") and _PLANE_PROCESS.search(head)
        ),
        how_to_record=f"{_JAX}; it has no shapes, so give the .xplane.pb next to it if there is "
        "one",
        suffixes=XPLANE_JSON,
    ),
    FormatReader(
        name="PyTorch profiler (Kineto) JSON",
        module="kineto.documents",
        fits=_is_json,
        how_to_record="torch.profiler.profile(...), then export_chrome_trace('trace.json.gz')",
        suffixes=_JSON,
    ),
]


@hookimpl
def tracelens_readers() -> list[Reader]:
    """The readers, in the order in which they are asked."""
    return READERS
