"""What our own export (`tracelens_ext/export`) says of a trace in its head, put back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.trace import Conventions

if TYPE_CHECKING:
    from tracelens_ext.trace import Trace

HEAD = "tracelens_ext"


def restored(trace: Trace) -> Trace:
    """A trace with the threads and the conventions that it had before it was exported."""
    head = trace.metadata.get(HEAD)
    if not isinstance(head, Mapping):
        return trace
    recorded = {
        (entry[0], entry[1]): (entry[2], entry[3])
        for entry in _list(head.get("threads"))
        if isinstance(entry, list)
        and len(entry) == 4
        and all(isinstance(part, int | str) for part in entry)
    }
    threads = [recorded.get(thread, thread) for thread in trace.threads]
    code = {thread: at for at, thread in enumerate(dict.fromkeys(threads))}
    codes = np.array([code[thread] for thread in threads], dtype=np.int32)
    base = trace.metadata.get("baseTimeNanoseconds")
    return replace(
        trace,
        thread=codes[trace.thread] if len(codes) else trace.thread,
        threads=list(code),
        conventions=_conventions(head.get("conventions")),
        base_ns=base if type(base) is int and 0 <= base < 1 << 62 else trace.base_ns,
        thread_names={recorded.get(key, key): name for key, name in trace.thread_names.items()},
    )


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _conventions(said: object) -> Conventions:
    members = said if isinstance(said, Mapping) else {}
    known: dict[str, bool | str | None] = {}
    for each in fields(Conventions):
        value = members.get(each.name, each.default)
        if type(value) is bool or (each.name == "categorizer" and isinstance(value, str)):
            known[each.name] = value
    return Conventions(**known)  # type: ignore[arg-type]
