"""Decides which files a command writes, how they are named, and which files they may replace."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from tracelens_ext.cli.screen import STANDARD_OUTPUT, print_line, tell
from tracelens_ext.errors import UsageError
from tracelens_ext.report import writing
from tracelens_ext.report.kernel_text import GAP_TITLE, KERNEL_TITLE
from tracelens_ext.report.manifest import check_output
from tracelens_ext.report.report import Report
from tracelens_ext.report.writing import OutputFormat, Places

#: How much of a text file is read to recognize one that this program wrote.
_BEGINNING_BYTES = 200
_PAGE_SUFFIXES = (".html", ".htm")
#: Suffix that the file of a report cannot have → why, and what to do.
_REFUSED_SUFFIXES = {
    ".html": "is an HTML page; write it with --html",
    ".htm": "is an HTML page; write it with --html",
    ".gz": "reports are not compressed; leave out .gz",
    ".csv": (
        "is a single file, but there are several tables; give a folder, with --format "
        "csv"
    ),
    ".parquet": (
        "is a single file, but there are several tables; give a folder, with --format "
        "parquet"
    ),
}
#: How the name of a folder of tables ends, after the name of the trace.
_FOLDER_ENDINGS = {OutputFormat.csv: "_csvs", OutputFormat.parquet: "_parquet"}
_USED_TWICE = "is used for two outputs; give different paths"


@dataclass(frozen=True)
class _Output:
    """A file or folder that a report is written to."""

    path: Path
    output_format: OutputFormat | Literal["html"]


@dataclass(frozen=True)
class OutputOptions:
    """The options that say what a report is written to."""

    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help=(
                "Excel file to write, or a folder for several traces.  [default: "
                "NAME_perf_report.xlsx next to each trace]"
            ),
        ),
    ] = None
    format: Annotated[
        OutputFormat | None,
        typer.Option(
            help=(
                "Format of the tables; csv and parquet write a folder of files.  "
                "[default: from the name of --output, else xlsx]"
            ),
        ),
    ] = None
    csv_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Write each table as a CSV file to this folder."
        ),
    ] = None
    no_workbook: Annotated[
        bool,
        typer.Option("--no-workbook", help="Do not write the Excel workbook."),
    ] = False
    html: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write an HTML page, or a folder of pages for several traces.",
        ),
    ] = None

    def for_one(self, trace: Path) -> Places:
        """Return the files for the report of a single trace."""
        (stem,) = report_stems([trace], one_folder=False)
        return self._places(stem, trace.parent / stem, several=False)

    def for_several(self, traces: Sequence[Path]) -> list[Places]:
        """Return the files for the reports of several traces, all with different names.

        The options then name folders.
        """
        stems_in_folder = report_stems(traces, one_folder=True)
        stems_beside_trace = report_stems(traces, one_folder=False)
        names = zip(traces, stems_in_folder, stems_beside_trace, strict=True)
        return [
            self._places(in_folder, trace.parent / beside_trace, several=True)
            for trace, in_folder, beside_trace in names
        ]

    def for_comparison(self, folder: Path, *, several: bool) -> Places:
        """Return the files for a comparison.

        Args:
            folder: where it goes if no option says otherwise.
            several: the options name folders, in which there are reports of several traces, too.
        """
        return self._places("comparison", folder / "comparison", several=several)

    def _places(self, stem: str, default: Path, *, several: bool) -> Places:
        """Return the files of a report; `default` is its path without an option and a suffix."""
        outputs: list[_Output] = []
        if self.csv_dir is not None:
            csv_folder = self.csv_dir / stem if several else self.csv_dir
            outputs.append(_Output(csv_folder, OutputFormat.csv))
        names_main_output = self.output is not None or self.format is not None
        names_other_output = self.csv_dir is not None or self.html is not None
        if names_main_output or not (names_other_output or self.no_workbook):
            outputs.append(self._main_output(stem, default, several=several))
        if self.html is not None:
            page = _page(self.html, f"{stem}.html", several=several)
            outputs.append(_Output(page, writing.PAGE))
        _refuse_repetition([output.path for output in outputs])
        return {output.path: output.output_format for output in outputs}

    def _main_output(self, stem: str, default: Path, *, several: bool) -> _Output:
        """Return the output that `--output` and `--format` name; by default a workbook."""
        chosen = self._chosen_format(several=several)
        if self.output is None:
            return _Output(default.with_name(_file_name(default.name, chosen)), chosen)
        path = Path(self.output)
        names_parent = several or (not chosen.is_folder and _is_folder(self.output))
        if names_parent:
            path /= _file_name(stem, chosen)
        return _Output(path, chosen)

    def check_extras(self) -> None:
        """Check that the packages for the formats are installed, before a trace is read in vain."""
        if self.format is not None:
            writing.require_format(self.format)
        if self.html is not None:
            writing.require_format(writing.PAGE)

    def _chosen_format(self, *, several: bool) -> OutputFormat:
        """Return the format that `--format` or the name of the output stands for.

        Raises:
            UsageError: the options contradict each other.
        """
        output = self.output or ""
        suffix = Path(output).suffix.lower()
        format_of_name = writing.FORMAT_OF_SUFFIX.get(suffix)
        is_folder = self.output is None or _is_folder(output)
        names_file = format_of_name is not None or suffix in _PAGE_SUFFIXES
        if several and not is_folder and names_file:
            raise UsageError(
                f"{output}: is a single file, but there are several traces; give a "
                "folder"
            )
        if several or is_folder:
            return self.format or OutputFormat.xlsx
        if output == str(STANDARD_OUTPUT):
            raise UsageError(
                "a report cannot be written to standard output; give a file name"
            )
        problem = self._problem_of_name(suffix, format_of_name)
        if problem is not None:
            raise UsageError(f"{output}: {problem}")
        return self.format or format_of_name or OutputFormat.xlsx

    def _problem_of_name(
        self, suffix: str, format_of_name: OutputFormat | None
    ) -> str | None:
        """Return why a report cannot have the name of the output; None if it can."""
        if suffix in _REFUSED_SUFFIXES:
            return _REFUSED_SUFFIXES[suffix]
        if format_of_name is None and self.format is None:
            return (
                "the default report is an Excel file; name it .xlsx, .json or .md, or "
                "use --format or --csv-dir"
            )
        if format_of_name is None and self.format is OutputFormat.xlsx:
            return "is not the name of an Excel file; end it with .xlsx"
        if self.format and format_of_name and format_of_name is not self.format:
            return f"does not match --format {self.format}"
        return None


def _refuse_repetition(paths: Sequence[Path]) -> None:
    """Check that no two outputs are the same file."""
    seen = set[str]()
    for path in paths:
        resolved = os.path.realpath(path)
        if resolved in seen:
            raise UsageError(f"{path}: {_USED_TWICE}")
        seen.add(resolved)


def write_outputs(
    report: Report, places: Places, inputs: Sequence[Path], *, force: bool
) -> list[Path]:
    """Write a report, and print on standard error which tables make a workbook slow."""
    from tracelens_ext.report.excel import slow_tables

    written = writing.write_report(report, places, inputs, force=force)
    if OutputFormat.xlsx in places.values():
        for line in slow_tables(report.sheets):
            print_line(line, error=True)
    return written


def check_outputs(places: Places, inputs: Sequence[Path], *, force: bool) -> None:
    """Check that no output replaces an input or a file of the user.

    Print on standard error which folders of earlier runs are unfinished.
    """
    for note in writing.check_places(places, inputs, force=force):
        tell(note)


def report_stems(traces: Sequence[Path], *, one_folder: bool) -> list[str]:
    """Return names for the outputs of traces, without suffix.

    Where two names would be the same, regardless of case as on some systems, the names of the
    folders are added; if that does not help, the whole names of the traces; and at last a number.

    Args:
        traces: the traces.
        one_folder: all outputs are in one folder. Otherwise each is next to its trace.
    """
    from tracelens_ext.perf_report import default_report_path

    parents = [Path(os.path.realpath(trace)).parent for trace in traces]
    folders = [Path() if one_folder else parent for parent in parents]
    prefixes = [f"{parent.name or 'root'}_" if one_folder else "" for parent in parents]
    stems = [default_report_path(trace).stem for trace in traces]
    with_parent = [prefix + stem for prefix, stem in zip(prefixes, stems, strict=True)]
    stems = _longer_where_equal(folders, stems, with_parent)
    whole_names = [
        f"{prefix}{trace.name}_perf_report"
        for prefix, trace in zip(prefixes, traces, strict=True)
    ]
    stems = _longer_where_equal(folders, stems, whole_names)
    return _numbered_where_equal(folders, stems)


def _file_keys(folders: Sequence[Path], stems: Sequence[str]) -> list[tuple[Path, str]]:
    """Return a key for each file; files with equal keys are the same file on some systems."""
    return [
        (folder, stem.casefold()) for folder, stem in zip(folders, stems, strict=True)
    ]


def _longer_where_equal(
    folders: Sequence[Path], stems: Sequence[str], longer: Sequence[str]
) -> list[str]:
    """Return the longer names for files whose names are equal in a folder."""
    keys = _file_keys(folders, stems)
    counts = Counter(keys)
    return [
        long if counts[key] > 1 else stem
        for stem, long, key in zip(stems, longer, keys, strict=True)
    ]


def _numbered_where_equal(folders: Sequence[Path], stems: Sequence[str]) -> list[str]:
    """Add numbers to names that are equal in a folder.

    A numbered name differs from all others: `a`, `a` and `a_2` become `a`, `a_3` and `a_2`.
    """
    unnumbered = set(_file_keys(folders, stems))
    used = set[tuple[Path, str]]()
    numbered_stems = []
    for folder, stem in zip(folders, stems, strict=True):
        candidate = stem
        key = (folder, candidate.casefold())
        number = 1
        while key in used or (number > 1 and key in unnumbered):
            number += 1
            candidate = f"{stem}_{number}"
            key = (folder, candidate.casefold())
        used.add(key)
        numbered_stems.append(candidate)
    return numbered_stems


def _file_name(stem: str, output_format: OutputFormat) -> str:
    if output_format.is_folder:
        return stem + _FOLDER_ENDINGS[output_format]
    return stem + output_format.suffix


def _is_folder(name: str) -> bool:
    """Return whether a path is a folder that exists, or ends in a slash."""
    return name.endswith(("/", os.sep)) or Path(name).is_dir()


def _page(html: str, name_in_folder: str, *, several: bool) -> Path:
    """Return the file of the HTML page; `html` is a page, or the folder of pages.

    Raises:
        UsageError: it is a single page for several traces, or not the name of a page.
    """
    is_page = Path(html).suffix.lower() in _PAGE_SUFFIXES
    if _is_folder(html) or (several and not is_page):
        return Path(html) / name_in_folder
    if several:
        raise UsageError(
            f"{html}: is a single page, but there are several traces; give a folder"
        )
    if not is_page:
        raise UsageError(f"{html}: is not the name of a page; end it with .html")
    return Path(html)


def check_texts(
    paths: Sequence[Path],
    trace: Path,
    *,
    force: bool,
    json: bool,
    every_gap: bool = False,
) -> None:
    """Check that texts replace no file of the user, not the trace, and not one another.

    Args:
        paths: where the texts are written.
        trace: the file that is read.
        force: files that this program did not write may be replaced.
        json: `--json` is given, which excludes a text on standard output.
        every_gap: `--all` is given, which affects only JSON.

    Raises:
        UsageError: options contradict each other.
    """
    if every_gap and not json:
        raise UsageError("--all only affects the JSON; add --json")
    if json and STANDARD_OUTPUT in paths:
        raise UsageError(
            "--json already writes to standard output, so the text cannot go there "
            "too; give a file name"
        )
    if len({os.path.realpath(path) for path in paths}) < len(paths):
        raise UsageError(f"{paths[0]}: {_USED_TWICE}")
    for path in paths:
        if path != STANDARD_OUTPUT:
            check_output(path, [trace], force=force or _is_our_text(path))


def _is_our_text(path: Path) -> bool:
    """Return whether a file begins like a text that this program writes."""
    rule = "=" * 50
    beginnings = tuple(
        f"{title}\n{rule}\n".encode() for title in (KERNEL_TITLE, GAP_TITLE)
    )
    with suppress(OSError, ValueError):
        if path.is_file():
            with path.open("rb") as stream:
                return stream.read(_BEGINNING_BYTES).startswith(beginnings)
    return False
