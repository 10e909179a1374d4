"""Where reports go: names, formats, and what may not be written over."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import add
from pathlib import Path
from typing import Literal

import typer

from tracelens_ext.cli.screen import print_line, tell
from tracelens_ext.errors import UsageError
from tracelens_ext.report.kernel_text import GAP_TITLE, KERNEL_TITLE
from tracelens_ext.report.manifest import check_output, written_beside
from tracelens_ext.report.report import (
    FORMAT_OF_SUFFIX,
    PAGE,
    Format,
    Places,
    Report,
    check_places,
    require_format,
    write_report,
)

#: What stands for standard output.
STANDARD_OUTPUT = Path("-")
_LOOK_BYTES = 200
_PAGE_SUFFIXES = (".html", ".htm")
#: How a name ends that is of no report → why, and what to do.
_NO_REPORTS = {
    **dict.fromkeys(_PAGE_SUFFIXES, "names a page; write it with --html"),
    **{
        suffix: "names one file for several tables; name a folder, with --format " + suffix[1:]
        for suffix in (".csv", ".parquet")
    },
    ".gz": "reports are not compressed; leave out .gz",
}
#: What a folder of tables beside a trace is called, after the trace.
_FOLDER_ENDINGS = {Format.csv: "_csvs", Format.parquet: "_parquet"}


@dataclass(frozen=True)
class Wanted:
    """What the user asked to be written.

    Options:
        output -o PATH: Excel file to write; a folder for several traces.  [default:
            NAME_perf_report.xlsx beside each trace]
        format: Write the tables in this format; csv and parquet are a folder of files.  [default:
            what --output is named, else xlsx]
        csv_dir FOLDER: Write each table as a CSV file into this folder.
        no_workbook: Write no more than what other options name.
        html FILE: Write a page for browsers; a folder for several traces.
    """

    output: str | None = None
    format: Format | None = None
    csv_dir: Path | None = None
    no_workbook: bool = False
    html: str | None = None

    def for_one(self, trace: Path) -> Places:
        """Where the report of a single trace goes."""
        (stem,) = report_stems([trace], one_folder=False)
        return self._places(stem, trace.parent / stem, several=False)

    def for_several(self, traces: Sequence[Path]) -> list[Places]:
        """Where the reports of several traces go, no two alike: options name folders then."""
        shared = report_stems(traces, one_folder=True)
        beside = report_stems(traces, one_folder=False)
        return [
            self._places(stem, trace.parent / own, several=True)
            for trace, stem, own in zip(traces, shared, beside, strict=True)
        ]

    def for_comparison(self, folder: Path, *, several: bool) -> Places:
        """Where a comparison goes: to this folder by default; beside reports of several traces."""
        return self._places("comparison", folder / "comparison", several=several)

    def _places(self, stem: str, default: Path, *, several: bool) -> Places:
        """The files of a report; `default` is that of `--output`, without suffix."""
        files: list[tuple[Path, Format | Literal["html"]]] = []
        if self.csv_dir is not None:
            files.append((self.csv_dir / stem if several else self.csv_dir, Format.csv))
        asked = self.output is not None or self.format is not None
        if asked or not (self.no_workbook or self.csv_dir or self.html is not None):
            chosen = self._format(several=several)
            place = Path(self.output or default.with_name(_file_name(default.name, chosen)))
            in_folder = several or (not chosen.is_folder and _is_folder(self.output or ""))
            if self.output is not None and in_folder:
                place /= _file_name(stem, chosen)
            files.append((place, chosen))
        if self.html is not None:
            files.append((_page(self.html, f"{stem}.html", several=several), PAGE))
        resolved = [os.path.realpath(path) for path, _ in files]
        for at, path in enumerate(resolved):
            if path in resolved[:at]:
                raise UsageError(f"{files[at][0]}: is named for two outputs; name two")
        return dict(files)

    def check_extras(self) -> None:
        """Check that what the formats need is installed, before a trace is read for nothing."""
        if self.format is not None:
            require_format(self.format)
        if self.html is not None:
            require_format(PAGE)

    def _format(self, *, several: bool) -> Format:
        """The format that was asked for, or that the name of the output tells."""
        output = self.output or ""
        suffix = Path(output).suffix.lower()
        told = FORMAT_OF_SUFFIX.get(suffix)
        if self.output is None or _is_folder(output):
            return self.format or Format.xlsx
        if several:
            if told or suffix in _PAGE_SUFFIXES:
                raise UsageError(f"{output}: names one file for several traces; name a folder")
            return self.format or Format.xlsx
        if output == "-":
            raise UsageError("a report cannot go to standard output; name a file")
        problem = _NO_REPORTS.get(suffix)
        if problem is None and told is None and self.format in (None, Format.xlsx):
            problem = "an Excel file is named .xlsx"
            if self.format is None:
                problem = "the report is an Excel file; name it .xlsx (.json and .md do too), or"
                problem += " give --format or --csv-dir"
        if problem is None and None not in (self.format, told) and told is not self.format:
            problem = f"does not go with --format {self.format}"
        if problem is not None:
            raise UsageError(f"{output}: {problem}")
        return self.format or told or Format.xlsx


def write_outputs(
    report: Report, places: Places, inputs: Sequence[Path], *, force: bool
) -> list[Path]:
    """Write a report, and say on standard error which tables are large for a workbook."""
    from tracelens_ext.report.excel import slow_tables

    written = write_report(report, places, inputs, force=force)
    for line in slow_tables(report.sheets) if Format.xlsx in places.values() else ():
        print_line(line, error=True)
    return written


def check_outputs(places: Places, inputs: Sequence[Path], *, force: bool) -> None:
    """Refuse to write over inputs and strangers' files, and tell of unfinished folders."""
    for note in check_places(places, inputs, force=force):
        tell(note)


def report_stems(traces: Sequence[Path], *, one_folder: bool) -> list[str]:
    """What the outputs of traces are called, each beside its trace or all in one folder.

    Where two would be the same (upper and lower case are on some systems), the names of their
    folders and their whole names are added, and in the end a number.
    """
    from tracelens_ext.perf_report import default_report_path

    parents = [Path(os.path.realpath(trace)).parent for trace in traces]
    keys = [Path() if one_folder else parent for parent in parents]
    prefixes = [f"{each.name or 'root'}_" if one_folder else "" for each in parents]
    names = [default_report_path(trace).stem for trace in traces]
    longer = [f"{trace.name}_perf_report" for trace in traces]
    for others in (map(add, prefixes, names), map(add, prefixes, longer)):
        folded = list(zip(keys, map(str.casefold, names), strict=True))
        often = Counter(folded)
        chosen = zip(names, others, folded, strict=True)
        names = [other if often[key] > 1 else name for name, other, key in chosen]
    taken, used = {*zip(keys, map(str.casefold, names), strict=True)}, set[tuple[Path, str]]()
    for at, (folder, name) in enumerate(zip(keys, names, strict=True)):
        number = 1
        while (key := (folder, names[at].casefold())) in used or (number > 1 and key in taken):
            number += 1
            names[at] = f"{name}_{number}"
        used.add(key)
    return names


def _file_name(stem: str, chosen: Format) -> str:
    return stem + (_FOLDER_ENDINGS[chosen] if chosen.is_folder else chosen.suffix)


def _is_folder(name: str) -> bool:
    """Whether a name is that of a folder: one that is there, or one that ends in a slash."""
    return name.endswith(("/", os.sep)) or Path(name).is_dir()


def _page(html: str, name: str, *, several: bool) -> Path:
    """The page of a report; `name` is what it is called in a folder."""
    is_page = Path(html).suffix.lower() in _PAGE_SUFFIXES
    if _is_folder(html) or (several and not is_page):
        return Path(html) / name
    if several:
        raise UsageError(f"{html}: names one page for several traces; name a folder")
    if not is_page:
        raise UsageError(f"{html}: a page is named .html")
    return Path(html)


def check_texts(
    paths: Sequence[Path | None], trace: Path, *, force: bool, json: bool, every: bool
) -> None:
    """Check that texts replace no file of the user, not the trace, and not one another.

    `json`, `every`: whether `--json` and `--all` are given, which do not go with all others.
    """
    if every and not json:
        raise UsageError("--all is about the JSON; add --json")
    if json and STANDARD_OUTPUT in paths:
        raise UsageError("--json writes to standard output, so a text cannot go there too")
    given = [path for path in paths if path is not None]
    if len({os.path.realpath(path) for path in given}) < len(given):
        raise UsageError(f"{given[0]}: is named for two outputs; name two")
    for path in given:
        if path != STANDARD_OUTPUT:
            check_output(path, [trace], force=force or _is_our_text(path))


def write_text(path: Path, text: str) -> None:
    """Write a whole text or nothing; `-` is standard output."""
    if path == STANDARD_OUTPUT:
        typer.echo(text, nl=False)
        return
    with written_beside(path) as beside:
        beside.write_text(text, encoding="utf-8", newline="\n")


def tell_written(paths: Sequence[Path | None]) -> None:
    """Say which files were written; on standard error where a text is on standard output."""
    for path in paths:
        if path is not None and path != STANDARD_OUTPUT:
            print_line(f"Wrote {path}", error=STANDARD_OUTPUT in paths)


def _is_our_text(path: Path) -> bool:
    """Whether a file begins as the texts of this program do."""
    begins = tuple(f"{title}\n{'=' * 50}\n".encode() for title in (KERNEL_TITLE, GAP_TITLE))
    with suppress(OSError, ValueError):
        if path.is_file():
            with path.open("rb") as stream:
                return stream.read(_LOOK_BYTES).startswith(begins)
    return False
