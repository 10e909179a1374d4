"""Lists the readers of this distribution, in the order in which they are tried.

They are registered through the same hook as the readers of plugins. Formats with a specific mark
come before formats that many files look like: the reader of Kineto's JSON takes any JSON. The
module of a format is imported only when a file is read.
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
    """The reader of a format, which calls the function `read` of a module of this package."""

    name: str
    module: str
    #: returns a true value for a file of the format, given its path and its first bytes
    fits: Callable[[Path, bytes], object]
    how_to_record: str
    suffixes: tuple[str, ...] = ()
    extra: str = ""  #: the extra of this distribution that the reader requires
    merged_ranks: str = ""  #: how a file with several ranks is read, in a line

    def recognises(self, path: Path, head: bytes) -> bool:
        """Return True if a file is of this format."""
        return bool(self.fits(path, head))

    def read_source(self, source: ByteSource) -> Trace:
        """Read a file.

        Raises:
            TraceError: the file is not a trace that can be analyzed, or an extra is missing.
        """
        try:
            reader = import_module(f"tracelens_ext.readers.{self.module}")
            trace: Trace = reader.read(source)
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
    """Return True if a file is an SQLite database that a class of a module reads.

    The result is None for a database that is gzipped or damaged.
    """
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
#: Titles of tables of rocprofv3, rocprof and rocprofv2.
_ROCPROF_TABLES = re.compile(
    rb'[\xef\xbb\xbf]*"?[A-Z][A-Za-z]*(?:_[A-Z][A-Za-z]*)*"?,[^\n]*_Timestamp"?'
    rb'|"Index","KernelName",[^\n]*"BeginNs"|"Name","Calls","TotalDurationNs"'
)
_ROCPROF_RESULTS = re.compile(
    rb'[\xef\xbb\xbf\s]*\{\s*"traceEvents"\s*:.*?"name"\s*:\s*'
    rb'"(?:CPU H(?:IP|SA) API|COPY|GPU\d+|Markers and Ranges)"',
    re.DOTALL,
)
#: Beginning of a JAX profile: a plane, with its id (if that is not 0) and its name.
_PLANE = re.compile(
    rb"\n[\x80-\xff]{0,9}[\0-\x7f](?:\x08[\x80-\xff]{0,9}[\0-\x7f])?\x12.(?:/host:|/device:)"
)
#: First byte of each field that a JAX profile may begin with: planes, errors, warnings, hosts.
_PLANE_FIELDS = (b"\n", b"\x12", b"\x1a", b'"')
_PLANE_PROCESS = re.compile(rb'"name"\s*:\s*"/(?:host|device):')
#: Beginning of a Perfetto trace: a packet whose first field is its time, sequence, clock, the
#: descriptor of a track, or a snapshot of clocks.
_PACKET = re.compile(
    rb"\n[\x80-\xff]{0,3}[\0-\x7f](?:[\x40\x50]|[\xd0\xe2]\x03|\x32[\0-\x7f]\n)"
)


def _has_suffix(path: Path, suffixes: tuple[str, ...]) -> bool:
    """Return True if the name of a file, without `.gz`, has one of the suffixes."""
    return path.name.lower().removesuffix(".gz").endswith(suffixes)


def _is_nsys_report(path: Path, head: bytes) -> bool:
    """Return True if the content is a report, or if the name is and the content may be one."""
    text = head.lstrip()
    if _has_suffix(path, NSYS_REPORTS):
        return bool(text) and not text.startswith((b"{", b"[", SQLITE_MAGIC))
    return text.startswith(b"NVIDIA Tegra Profiler Report")


def _is_nsys_table(_: Path, head: bytes) -> bool:
    """Return True if a file begins with a table of `nsys stats`, perhaps after messages."""
    if head.startswith(b"{"):
        return False
    from tracelens_ext.readers.nsys.csv_tables import report_in

    return report_in(head) is not None


def _is_rocpd(path: Path, head: bytes) -> bool:
    """Return True if a file has the tables of rocpd.

    A database that is gzipped or damaged is recognized by its name.
    """
    is_rocpd = _is_database("rocprof.rocpd", "RocpdDatabase", path, head)
    if is_rocpd is not None:
        return is_rocpd
    return ".db" in path.suffixes


def _is_rpd(path: Path, head: bytes) -> bool:
    """Return True if a file has the tables of rocmProfileData.

    A database that is gzipped or damaged is recognized by its name.
    """
    is_rpd = _is_database("rocprof.rpd", "RpdDatabase", path, head)
    if is_rpd is not None:
        return is_rpd
    return ".rpd" in path.suffixes


def _is_rocprof_results(path: Path, head: bytes) -> object:
    """Return a true value if a file is a database or JSON of rocprof, before rocprofv3."""
    is_json = _ROCPROF_RESULTS.match(head)
    return is_json or _is_database("rocprof.results", "ResultsDatabase", path, head)


def _is_xplane(path: Path, head: bytes) -> object:
    """Return a true value if the content begins with a plane.

    If the name is that of a profile, the first byte suffices.
    """
    if _has_suffix(path, XPLANE):
        return head.startswith(_PLANE_FIELDS)
    return _PLANE.match(head)


def _is_perfetto(path: Path, head: bytes) -> object:
    """Return a true value if the content begins with a packet.

    If the name is that of a Perfetto trace, any content that is not JSON suffices.
    """
    if _has_suffix(path, _PERFETTO):
        return head and not head.lstrip().startswith((b"{", b"["))
    return _PACKET.match(head)


def _is_json(_: Path, head: bytes) -> bool:
    """Return True if a file begins like JSON; its reader refuses JSON that is not a trace."""
    text = head.lstrip(b" \t\r\n\xef\xbb\xbf")
    is_utf16 = text[1:2] == b"\0"
    return text.startswith((b"{", b"[")) and not is_utf16


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
        merged_ranks="a file with the merged traces of several ranks is read as one trace "
        "per rank; report and fleet read all ranks, other commands the one in --rank N",
    ),
]


@hookimpl
def tracelens_readers() -> list[Reader]:
    """Return the readers of this distribution, in the order in which they are tried."""
    return READERS
