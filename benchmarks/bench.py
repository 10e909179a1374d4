"""Time and memory against a fixed yardstick.

    python benchmarks/bench.py [--only PART,PART] [--megabytes 500] [--large 2000] [--repeat 3]

The yardstick is `json.loads` of the decompressed bytes with the garbage collector off, in the same
run. Everything runs in fresh processes with their imports done first, on one core unless a table
says otherwise; the best of `--repeat` runs counts. Machines differ and are noisy: the ratio is what
carries over. A real trace from ../shared is grown to the wanted size and kept in benchmarks/data;
where that folder is absent the demo trace takes its place.

Parts: sizes (whole jobs, by size and layout), stages (what each of them takes), jobs (one core and
several), recorded (real traces as they are), startup, names (categorizing), and those in files of
their own: second_run (the cache), nsys, nsys_report, rocprof, xplane,
distinct (what hostile files cost), fleet, json_output (JSON against the screen).
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import programs
from measuring import (
    DATA,
    GROWN_FROM,
    ROOT,
    SHARED,
    SMALL,
    best,
    grown,
    packed,
    room_for,
    text_size,
    yardstick,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LAYOUTS = ("kineto", "indented", "compact")
#: What is aimed at; printed beside what was measured.
SUMMARY_TARGET = 0.8
SUMMARY_STRETCH = 0.5
REPORT_TARGET = 1.2
REPORT_STRETCH = 0.8
EVENT_BYTES = 250
FIXED_BYTES = 200 * 10**6
MEANT_BYTES = 300 * 10**6
HELP_TARGET_S = 0.3
RANKS = 8


def sizes(options: argparse.Namespace) -> None:
    """Whole jobs on traces of several sizes and layouts."""
    print(
        f"Targets for {options.megabytes} MB: summary at most {SUMMARY_TARGET} of the yardstick"
        f" (stretch {SUMMARY_STRETCH}), report at most {REPORT_TARGET} ({REPORT_STRETCH}), peak at"
        f" most {FIXED_BYTES / 1e6:.0f} MB and {EVENT_BYTES} bytes an event.\n"
    )
    header = [
        "trace",
        "MB",
        "events",
        "yardstick, s",
        "summary / yardstick",
        "read",
        "tree",
    ]
    header += ["table", "report / yardstick", "peak anonymous, MB", "allowed, MB"]
    _row([*header, "summary, MB/s", "targets"], rule=True)
    for name, trace in _traces(options):
        _row(_size_row(name, trace, options.repeat))
    if not options.large:
        return
    if problem := room_for(options.large):
        print(f"\nkineto, {options.large} MB: left out, as {problem}")
        return
    repeat = min(options.repeat, 2)
    _row(
        _size_row(f"kineto, {options.large} MB", grown("kineto", options.large), repeat)
    )


def _traces(options: argparse.Namespace) -> list[tuple[str, Path]]:
    """Small, largest as recorded, and grown in each layout, gzipped too."""
    found = []
    if SHARED.exists():
        found += [
            ("a small one, gzipped", SMALL),
            ("the largest as recorded, gzipped", GROWN_FROM),
        ]
    layouts = options.layouts.split(",")
    found += [(layout, grown(layout, options.megabytes)) for layout in layouts]
    found.append(
        (f"{layouts[0]}, gzipped", packed(grown(layouts[0], options.megabytes)))
    )
    return found


def _size_row(name: str, trace: Path, repeat: int) -> list[str]:
    yard = yardstick(trace, repeat)
    ours = best(programs.SUMMARY, str(trace), repeat=repeat, key="all")
    report = best(programs.REPORT, str(trace), repeat=repeat, key="report").figures[
        "report"
    ]
    f = ours.figures
    size = text_size(trace)
    allowed = FIXED_BYTES + EVENT_BYTES * f["events"]
    met = (
        f["all"] / yard <= SUMMARY_TARGET,
        report / yard <= REPORT_TARGET,
        ours.peak <= allowed,
    )
    missed = [
        what
        for what, good in zip(("summary", "report", "peak"), met, strict=True)
        if not good
    ]
    return [
        name,
        f"{size / 1e6:.0f}",
        f"{f['events']:,}",
        f"{yard:.2f}",
        f"{f['all'] / yard:.2f}",
        f"{f['read'] / yard:.2f}",
        f"{f['tree'] / yard:.2f}",
        f"{f['table'] / yard:.2f}",
        f"{report / yard:.2f}",
        f"{ours.peak / 1e6:.0f}",
        f"{allowed / 1e6:.0f}",
        f"{size / 1e6 / f['all']:.0f}",
        _verdict(missed, size),
    ]


def _verdict(missed: Sequence[str], size: int) -> str:
    """Say if the targets are met; they are about large traces."""
    if size < MEANT_BYTES:
        return ""
    return f"missed: {', '.join(missed)}" if missed else "met"


def stages(options: argparse.Namespace) -> None:
    """What each stage takes, of the yardstick; a column a trace."""
    traces = _traces(options)
    yards = [yardstick(trace, options.repeat) for _, trace in traces]
    runs = [
        best(programs.STAGES, str(trace), repeat=options.repeat, key="all").figures
        for _, trace in traces
    ]
    _row(["stage / yardstick", *(name for name, _ in traces)], rule=True)
    for stage in dict.fromkeys(
        name for figures in runs for name in figures if name != "all"
    ):
        shares = [
            f"{figures[stage] / yard:.3f}" if stage in figures else ""
            for figures, yard in zip(runs, yards, strict=True)
        ]
        _row([stage, *shares])
    _row(["(yardstick, s)", *(f"{yard:.2f}" for yard in yards)])


def jobs(options: argparse.Namespace) -> None:
    """Slices of one trace, and traces of one job, on one core and on several."""
    cores = len(os.sched_getaffinity(0))
    trace = grown("kineto", options.megabytes)
    _row(
        ["job", "cores", "s", "/ one core", "peak anonymous of all processes, MB"],
        rule=True,
    )
    cases: list[tuple[str, str, str, list[str]]] = [
        ("read the trace", programs.SUMMARY, "read", [str(trace)]),
        ("read it gzipped", programs.SUMMARY, "read", [str(packed(trace))]),
        ("summary of it", programs.SUMMARY, "all", [str(trace)]),
    ]
    for name, program, key, arguments in cases:
        first = 0.0
        for count in dict.fromkeys((1, 2, cores)):
            if count > cores:
                continue
            given = [*arguments, str(count)]
            ours = best(program, *given, repeat=options.repeat, key=key, cores=count)
            first = first or ours.figures[key]
            _jobs_row(name, count, ours.figures[key], first, ours.peak_of_all)
    if GROWN_FROM.exists():
        _ranks(options, cores)


def _ranks(options: argparse.Namespace, cores: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for number in range(RANKS):
            shutil.copyfile(GROWN_FROM, Path(folder) / f"rank{number}.json.gz")
        first = 0.0
        for count in dict.fromkeys((1, 2, cores)):
            if count > cores:
                continue
            given = [str(count), folder]
            ours = best(
                programs.RANKS, *given, repeat=options.repeat, key="ranks", cores=count
            )
            first = first or ours.figures["ranks"]
            name = f"`report` of {RANKS} recorded traces"
            _jobs_row(name, count, ours.figures["ranks"], first, 0)


def _jobs_row(name: str, cores: int, seconds: float, first: float, peak: int) -> None:
    shown = f"{peak / 1e6:.0f}" if peak else ""
    _row([name, str(cores), f"{seconds:.2f}", f"{seconds / first:.2f}", shown])


def recorded(options: argparse.Namespace) -> None:
    """The whole report of real traces, gzipped, against the yardstick."""
    if not SHARED.exists():
        print("There are no recorded traces here.")
        return
    _row(
        ["trace", "MB gzipped", "yardstick, s", "report, s", "report / yardstick"],
        rule=True,
    )
    for trace in sorted(SHARED.glob("traces/*/*.json.gz")):
        if trace.stat().st_size < 100_000:
            continue
        yard = yardstick(trace, options.repeat)
        ours = best(programs.REPORT, str(trace), repeat=options.repeat, key="report")
        report = ours.figures["report"]
        size = f"{trace.stat().st_size / 1e6:.1f}"
        name = (
            f"{trace.parent.name}/{trace.name.split('__')[0].removesuffix('.json.gz')}"
        )
        _row([name, size, f"{yard:.3f}", f"{report:.3f}", f"{report / yard:.2f}"])


def startup(options: argparse.Namespace) -> None:
    """`--help` in a fresh process."""
    found = best(programs.STARTUP, repeat=max(options.repeat, 5), key="help").figures[
        "help"
    ]
    verdict = "met" if found < HELP_TARGET_S else "missed"
    print(
        f"`tracelens-ext --help`: {found:.2f} s (target: under {HELP_TARGET_S} s, {verdict})"
    )


def names(options: argparse.Namespace) -> None:
    """Distinct kernel names to categories."""
    found = best(
        programs.CATEGORIZE, str(ROOT), repeat=options.repeat, key="categorize"
    ).figures
    print(
        f"{found['names']:,} distinct kernel names categorized in {found['categorize']:.1f} s"
    )


def second_run(options: argparse.Namespace) -> None:
    """What the cache saves."""
    print(importlib.import_module("second_run").table(_one(options), options.repeat))


def nsys(options: argparse.Namespace) -> None:
    """Nsight Systems' exports."""
    print(importlib.import_module("nsys").table(DATA, options.repeat))


def nsys_report(options: argparse.Namespace) -> None:
    """Nsight Systems' reports, beside their exports."""
    print(importlib.import_module("nsys_report").table(DATA, options.repeat))


def rocprof(options: argparse.Namespace) -> None:
    """Recordings of rocprofv3."""
    print(importlib.import_module("rocprof").table(DATA, options.repeat))


def xplane(options: argparse.Namespace) -> None:
    """Profiles of JAX."""
    print(importlib.import_module("xplane").table(DATA, options.repeat))


def distinct(options: argparse.Namespace) -> None:
    """Small files in which everything is another."""
    print(importlib.import_module("distinct").table(DATA, options.repeat))


def fleet(_options: argparse.Namespace) -> None:
    """Many ranks."""
    print(importlib.import_module("fleet").table(DATA))


def json_output(options: argparse.Namespace) -> None:
    """What JSON costs beside the screen."""
    trace = GROWN_FROM if GROWN_FROM.exists() else _one(options)
    print(importlib.import_module("json_output").table(trace, options.repeat))


def _one(options: argparse.Namespace) -> Path:
    return grown("kineto", options.megabytes)


PARTS: dict[str, tuple[str, Callable[[argparse.Namespace], None]]] = {
    "sizes": ("Whole jobs, one core", sizes),
    "stages": ("Stages, one core", stages),
    "jobs": ("Several cores", jobs),
    "recorded": ("Recorded traces, one core", recorded),
    "startup": ("Start", startup),
    "names": ("Kernel names", names),
    "second_run": ("The cache: first and second run", second_run),
    "nsys": ("Nsight Systems", nsys),
    "nsys_report": ("Nsight Systems: reports and exports", nsys_report),
    "rocprof": ("rocprofv3", rocprof),
    "xplane": ("Profiles of JAX", xplane),
    "distinct": ("Files of 5 MB in which everything is another", distinct),
    "fleet": ("Many ranks", fleet),
    "json_output": ("JSON and the screen", json_output),
}


def _row(cells: Sequence[str], *, rule: bool = False) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)
    if rule:
        print("|" + "---|" * len(cells), flush=True)


def main() -> None:
    """Print the tables, in Markdown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(PARTS), metavar="PART,PART")
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument(
        "--large", type=int, default=2000, metavar="MB", help="0: leave it out"
    )
    parser.add_argument("--layouts", default=",".join(LAYOUTS))
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    wanted = options.only.split(",")
    if unknown := sorted(set(wanted) - set(PARTS)):
        parser.error(
            f"--only: there is no {', '.join(unknown)}; there are {', '.join(PARTS)}"
        )
    DATA.mkdir(exist_ok=True)
    here = Path(__file__).parent
    for part in wanted:
        title, gpu_events = PARTS[part]
        in_files = (
            "second_run",
            "nsys",
            "nsys_report",
            "rocprof",
            "xplane",
            "distinct",
            "fleet",
            "json_output",
        )
        if part in in_files and not (here / f"{part}.py").exists():
            continue
        print(f"## {title}\n", flush=True)
        gpu_events(options)
        print(flush=True)


if __name__ == "__main__":
    main()
