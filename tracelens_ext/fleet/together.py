"""The calls of all ranks on Dask workers: a process group is one task, then all groups together."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tracelens_ext.lazy import pd
from tracelens_ext.ranks.calls import GroupCalls, group_calls, unnamed_calls
from tracelens_ext.ranks.together import job_tables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracelens_ext.fleet.store import ResultStore

#: The tables, in the order in which they are shown.
TABLES = (
    *("verdicts", "collective_groups", "wait_origins", "clocks", "overlap"),
    *("collective_sync", "collective_waits"),
)
#: Those that grow with the calls stay in the folder.
PAGE = "ranks.html"
_LARGE = ("collective_sync", "collective_waits")


def ranks_together(
    client: Any,  # noqa: ANN401  # Dask has no type hints
    store: ResultStore,
    done: Mapping[str, Mapping[str, Any]],
    *,
    failed: Sequence[int],
    ranks_per_node: int | None,
) -> dict[str, pd.DataFrame]:
    """Match the calls of all ranks; write `TABLES` and the page, answer the smaller tables.

    Args:
        client: of Dask; None to do all in this process.
        store: where the parts are, and the tables go.
        done: stem → what is noted of the trace.
        failed: ranks whose traces could not be read.
        ranks_per_node: as the user says.
    """
    abouts = {stem: about["communication"] for stem, about in done.items()}
    stems: dict[str, list[str]] = {}
    for stem, about in abouts.items():
        for key in about["groups"]:
            stems.setdefault(key, []).append(stem)
    sets = {each for about in abouts.values() for each in about["sets"]}
    ranks = sum(len(about["ranks"]) for about in abouts.values())
    sizes = [about["world_size"] for about in done.values() if about["world_size"]]
    options = {
        "world": max(sizes, default=None),
        "failed": failed,
        "ranks_per_node": ranks_per_node,
    }
    links = _reports(store, done)
    work = [(store, key, stems[key], len(sets) < 2, ranks) for key in sorted(stems)]
    if client is not None:
        from distributed import CancelledError
        from distributed.scheduler import KilledWorker

        try:
            groups = [client.submit(_group, *each, pure=False) for each in work]
            return client.submit(_all, store, groups, abouts, options, links, pure=False).result()  # type: ignore[no-any-return]
        except (KilledWorker, CancelledError, TimeoutError, OSError):
            pass  # the workers are gone; what they would have done is done here
    return _all(store, [_group(*each) for each in work], abouts, options, links)


def _reports(store: ResultStore, done: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Name and address of the ranks' report pages, in the folder of the results or by the trace."""
    if not store.is_local:
        return []
    from tracelens_ext.perf_report import default_report_path

    out = Path(store.path_of(PAGE)).resolve().parent
    pages = []
    for about in done.values():
        page = default_report_path(Path(about["url"])).with_suffix(".html").resolve()
        pages.append((int(about["rank"]), [out / page.name, page]))
    names = [beside[0].name for _, beside in pages]
    links = []
    for rank, beside in sorted(pages):
        # Of several traces with one name, it is not known whose page lies there.
        unique = beside[names.count(beside[0].name) > 1 :]
        for page in [path for path in unique if path.is_file()][:1]:
            address = quote(os.path.relpath(page, out).replace(os.sep, "/"))
            links.append((f"Report of rank {rank}", address))
    return links


def _group(
    store: ResultStore, key: str, stems: Sequence[str], one_group: bool, ranks: int
) -> GroupCalls:
    frames = []
    for stem in stems:
        frame = store.get_table(f"rank_calls/{stem}").to_pandas()
        frames.append(frame[frame["key"] == key])
    rows = pd.concat(frames, ignore_index=True)
    rows = rows.drop_duplicates(["rank", "launch", "start", "dur", "kernel_name"])
    return group_calls(rows) if key else unnamed_calls(rows, one_group=one_group, ranks=ranks)


def _all(
    store: ResultStore,
    groups: Sequence[GroupCalls],
    abouts: Mapping[str, Mapping[str, Any]],
    options: Mapping[str, Any],
    links: Sequence[tuple[str, str]],
) -> dict[str, pd.DataFrame]:
    parts: dict[str, list[pd.DataFrame]] = {"rank_iterations": [], "overlap": []}
    for name, frames in parts.items():
        frames += [store.get_table(f"{name}/{stem}").to_pandas() for stem in abouts]
    joined = {
        name: pd.concat([f for f in frames if len(f)] or frames[:1], ignore_index=True)
        for name, frames in parts.items()
    }
    tables = {"overlap": joined["overlap"]}
    if groups:
        tables |= job_tables(groups, joined["rank_iterations"], list(abouts.values()), **options)
    for name, frame in tables.items():
        store.put_table(name, frame)
    if "verdicts" in tables and store.is_local and all(map(find_spec, ("jinja2", "plotly"))):
        from tracelens_ext.fleet.page import write_page

        write_page(Path(store.path_of(PAGE)), tables, links)
    return {name: tables[name] for name in TABLES if name in tables and name not in _LARGE}
