"""Restores a trace that this program exported as JSON: its threads, times and conventions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import msgspec

from tracelens_ext.readers.builder import Interner
from tracelens_ext.trace import Conventions, Trace

#: The top-level member that only traces which this program exported have.
EXPORTED_BY = "tracelens_ext"


class _ExportedFacts(msgspec.Struct):
    """The facts about the recorded trace that an exported trace keeps."""

    #: exported process and thread, and recorded process and thread
    threads: list[tuple[int | str, int | str, int | str, int | str]] = []
    conventions: dict[str, object] = {}


def restored(trace: Trace) -> Trace:
    """Undo the changes that exporting made to a trace.

    Threads, conventions and times become those of the recorded trace. A trace that this program did
    not export is returned as it is.
    """
    try:
        facts = msgspec.convert(trace.metadata[EXPORTED_BY], _ExportedFacts)
    except (KeyError, msgspec.ValidationError):
        return trace
    recorded_thread_of = {entry[:2]: entry[2:] for entry in facts.threads}
    recorded_threads = []
    for exported_thread in trace.threads:
        recorded_thread = recorded_thread_of.get(exported_thread, exported_thread)
        recorded_threads.append(recorded_thread)
    # Several exported threads may be the same recorded thread.
    codes: Interner[tuple[int | str, int | str]] = Interner()
    code_of_thread = codes.codes(recorded_threads, len(trace.threads))
    thread_names = {}
    for exported_thread, name in trace.thread_names.items():
        recorded_thread = recorded_thread_of.get(exported_thread, exported_thread)
        thread_names[recorded_thread] = name
    thread = trace.thread
    if len(trace.threads):
        thread = code_of_thread[thread]
    base_ns = trace.base_ns
    recorded_base = trace.metadata.get("baseTimeNanoseconds")
    if type(recorded_base) is int and 0 <= recorded_base < 1 << 62:
        base_ns = recorded_base
    return replace(
        trace,
        thread=thread,
        threads=list(codes),
        conventions=_conventions(facts.conventions),
        base_ns=base_ns,
        thread_names=thread_names,
    )


def _conventions(recorded: Mapping[str, object]) -> Conventions:
    """Return the conventions of the recorded trace, as far as this version knows them."""
    defaults = asdict(Conventions())
    known_fields: dict[str, Any] = {
        name: value
        for name, value in recorded.items()
        if name in defaults and type(value) is type(defaults[name])
    }
    return Conventions(**known_fields)
