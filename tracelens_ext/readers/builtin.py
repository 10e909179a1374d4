"""The formats that are read without a plugin: one line each.

They come through the same hook as a plugin's readers. A reader that recognises a format by more
than its first bytes comes before those that take whatever looks like theirs.
"""

from tracelens_ext.hooks import Reader, hookimpl


@hookimpl
def tracelens_readers() -> list[Reader]:
    """The readers, in the order in which they are asked."""
    from tracelens_ext.readers.kineto import KinetoReader
    from tracelens_ext.readers.nsys import NsysDatabaseReader, NsysReportReader, NsysTableReader
    from tracelens_ext.readers.perfetto import PerfettoReader
    from tracelens_ext.readers.rocprof import (
        RocpdReader,
        RocprofJsonReader,
        RocprofResultsReader,
        RocprofTableReader,
    )
    from tracelens_ext.readers.xplane import JaxJsonReader, XplaneReader

    return [
        NsysReportReader(),
        RocprofResultsReader(),
        RocpdReader(),
        RocprofJsonReader(),
        RocprofTableReader(),
        NsysDatabaseReader(),
        NsysTableReader(),
        XplaneReader(),
        PerfettoReader(),
        JaxJsonReader(),
        KinetoReader(),
    ]
