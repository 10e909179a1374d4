"""One target under atheris; `run.py` starts it. Arguments: its name, then libFuzzer's."""

from __future__ import annotations

import os
import random
import sys

import atheris

os.environ["TRACELENS_EXT_NO_CACHE"] = "1"
os.environ["TRACELENS_EXT_NO_PLUGINS"] = "1"

with atheris.instrument_imports(include=["tracelens_ext"]):
    import tracelens_ext.analysis.memory.snapshot_tables
    import tracelens_ext.analysis.nsys_statistics.configuration
    import tracelens_ext.analysis.nsys_statistics.totals
    import tracelens_ext.analyzer
    import tracelens_ext.categorize.maps
    import tracelens_ext.categorize.rules
    import tracelens_ext.perf_report
    import tracelens_ext.readers.cache.store
    import tracelens_ext.readers.nsys.csv_tables
    import tracelens_ext.readers.nsys.report
    import tracelens_ext.readers.nsys.sqlite
    import tracelens_ext.readers.perfetto.trace_assembly
    import tracelens_ext.readers.rocprof.rocpd
    import tracelens_ext.readers.xplane.reader  # noqa: F401

from targets import TARGETS

from tests.support.trace_mutations import mutate

#: How often bytes are damaged as bytes, however the target's inputs look.
_BLINDLY = 0.1


def main() -> None:
    """Fuzz until libFuzzer's limits or the first failure."""
    target = TARGETS[sys.argv.pop(1)]

    def damaged(data: bytes, max_size: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if not target.as_text or rng.random() < _BLINDLY:
            return atheris.Mutate(data, max_size)
        return mutate(data, rng)[:max_size]

    atheris.Setup(sys.argv, target.check, custom_mutator=damaged)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
