"""Where reports go: to a terminal, whatever it can show, and to files, whatever is there."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.report import writing
from tracelens_ext.report.kernel_text import GAP_TITLE, KERNEL_TITLE
from tracelens_ext.report.manifest import check_output, written_beside
from tracelens_ext.report.report import Report
from tracelens_ext.report.tables.registry import find_table
from tracelens_ext.report.tables.table import Table
from tracelens_ext.report.terminal import frame_table, safe_text
from tracelens_ext.report.writing import OutputFormat, Places
from tracelens_ext.text import ms_text

if TYPE_CHECKING:
    from rich.console import Console

    from tracelens_ext.trace.gpu_events import GpuEvents

#: Columns of a terminal: below it names need the room of numbers that say less.
NARROW = 120
_PIPED_WIDTH = 200
_WIDEST_TEXT = 120  # longer lines are hard to read
_NOTE_LINES = 5
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=%|(?:[mµμn]?s|[kMG]?B)\b)")
_SMALL = 0.1  # below it three digits tell more than three decimals


@dataclass(frozen=True)
class Part:
    """A table on the screen, below a blank line; nothing of one without rows."""

    title: str
    frame: pd.DataFrame
    #: to show, in this order, where the table has them: what does not fit goes from the end
    columns: Sequence[str] | None = None
    rows: int | None = None  #: the first ones; all by default
    keep: Sequence[str] = ()  #: columns that are left out last
    name_width: int = 20  #: of the first column, as long as there are columns that do not fit

    @classmethod
    def of(cls, table: Table | str, frame: pd.DataFrame, rows: int | None = None) -> Part:
        """A registered table, or that of a name, as its declaration has it on a screen."""
        if isinstance(table, str):
            table = find_table(table)
        view = table.screen
        return cls(view.title, frame, view.columns or None, rows)

    def __call__(self, _: Console) -> Iterable[Any]:
        """What is printed."""
        if len(self.frame) and self.rows != 0:
            yield [""]
            yield frame_table(**vars(self))


#: What is on a screen: a sentence, which is folded; lines as they are; what rich shows; or what
#: makes such of the terminal, as only its width tells what has room, such as a `Part`.
Block = str | Sequence[str] | Callable[["Console"], Iterable[Any]] | Any


#: Whether every note is printed, not five lines of them.
every_note = ContextVar("every_note", default=False)


def show(
    report: Report,
    blocks: Iterable[Block],
    *,
    json: bool = False,
    texts: Mapping[Path, Callable[[], str]] | None = None,
) -> None:
    """Print a report: its blocks, then its notes; or it as JSON.

    `texts` are written to files; one that goes to standard output (`-`) is all that is printed.
    """
    texts = texts or {}
    for path, text in texts.items():
        write_text(path, text())
    if json:
        print_report(report)
        return
    if STANDARD_OUTPUT not in texts:
        screen = console()
        show_blocks(blocks, screen)
        if report.notes:
            screen.print()
            show_notes(report.notes, screen, whole=every_note.get())
    tell_written([*texts])


def show_blocks(blocks: Iterable[Block], screen: Console) -> None:
    """Print blocks one below the other."""
    for block in blocks:
        if isinstance(block, str):
            indent = "    " if block.startswith(" ") else ""
            block = folded(block, screen.width, indent) or [""]
        if isinstance(block, list | tuple):
            _show_lines(block, screen)
        elif callable(block):
            show_blocks(block(screen), screen)
        else:
            screen.print(block)


def bold(text: str) -> Block:
    """Lines in bold."""
    from rich.text import Text

    return lambda screen: [Text(line, "bold") for line in _plain(text.splitlines(), screen)]


def trace_report(
    title: str,
    trace: object,
    tables: Mapping[str, pd.DataFrame],
    notes: Iterable[str] = (),
    *,
    facts: Sequence[tuple[str, object]] = (),
    members: Mapping[str, object] | None = None,
) -> Report:
    """Tables of a trace as a report."""
    told = [("Trace", str(trace)), *facts]
    return Report(title, tables, told, list(notes), members=members or {})


def print_report(report: Report, form: OutputFormat | None = None) -> None:
    """Print a report to standard output, piece by piece."""
    for piece in writing.report_text(report, form or OutputFormat.json):
        typer.echo(piece, nl=False)


def print_line(text: str, *, error: bool = False) -> None:
    """Print a line; what could act on a terminal, or break the line, is shown as an escape."""
    typer.echo(safe_text(text), err=error)


def tell(text: str) -> None:
    """Say something about the run on standard error."""
    print_line(f"tracelens-ext: {text}", error=True)


def screen_width() -> int:
    """Columns of the terminal; many when the output goes to a file or a program."""
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return shutil.get_terminal_size().columns
    return _PIPED_WIDTH


def console() -> Console:
    """The terminal that everything is shown on."""
    from rich.console import Console

    return Console(width=screen_width())


def _show_lines(lines: Sequence[str], screen: Console) -> None:
    """Print lines as they are, however long."""
    from rich.text import Text

    for line in _plain(lines, screen):
        screen.print(Text(line), soft_wrap=True)


def _plain(lines: Sequence[str], screen: Console) -> Sequence[str]:
    """Lines as this terminal can show them: one that knows ASCII only, in that."""
    from tracelens_ext.analysis.idle_time.histogram import ascii_lines

    lines = [safe_text(line) for line in lines]
    if not screen.options.ascii_only:
        return lines
    return [line.encode("ascii", "backslashreplace").decode() for line in ascii_lines(lines)]


def first_lines(work: GpuEvents, trace: object = None) -> list[Block]:
    """What the recording holds (nothing without GPU work), and its file: what is shown first."""
    from tracelens_ext.analysis.coverage.report_tables import recording_lines

    told: list[Block] = [f"Recording: {' '.join(recording_lines(work))}"] if len(work) else []
    if trace is not None:
        return [[f"Trace: {trace}"], *told]
    return [*told, [""]] if told else []


def folded(text: str, width: int, indent: str = "") -> list[str]:
    """A text in lines that fit; no word is broken, and no number parted from its unit."""
    text = _BEFORE_UNIT.sub("\u00a0", safe_text(text))
    lines = textwrap.wrap(text, max(width, 40), subsequent_indent=indent, break_on_hyphens=False)
    return [line.replace("\u00a0", " ") for line in lines]


def fact_text(label: str, value: object) -> str:
    """A fact of a report in a line; a time in the unit that fits."""
    if isinstance(value, float) and label.endswith(" (ms)"):
        return f"{label.removesuffix(' (ms)')}: {ms_text(value)}"
    if isinstance(value, float):
        value = f"{value:,.3f}" if value >= _SMALL or not value else f"{value:.3g}"
    return f"{label}: {value}"


def show_notes(notes: Sequence[str], screen: Console, *, whole: bool = False) -> None:
    """Print notes; if not `whole`, no more lines of them than have room on a screen."""
    texts = [folded(note, min(screen.width, _WIDEST_TEXT)) for note in notes]
    lines = [line for text in texts for line in text]
    if len(lines) > _NOTE_LINES and not whole:
        room = _NOTE_LINES - 1
        left = texts.copy()
        cut = [*lines[: room - 1], f"{lines[room - 1]} …"]  # where the first alone has no room
        lines = []
        while len(lines) + len(left[0]) <= room:
            lines += left.pop(0)
        more = len(left)
        lines = lines or cut
        lines.append(f"and {more} more note{'s' if more > 1 else ''}: --notes")
    _show_lines(lines, screen)


#: What stands for standard output.
STANDARD_OUTPUT = Path("-")
_LOOK_BYTES = 200
_PAGE_SUFFIXES = (".html", ".htm")
#: How a name ends that is of no report → why, and what to do.
_NO_REPORTS = dict.fromkeys(_PAGE_SUFFIXES, "names a page; write it with --html")
_NO_REPORTS[".gz"] = "reports are not compressed; leave out .gz"
_NO_REPORTS |= {
    f".{form}": f"names one file for several tables; name a folder, with --format {form}"
    for form in ("csv", "parquet")
}
#: What a folder of tables beside a trace is called, after the trace.
_FOLDER_ENDINGS = {OutputFormat.csv: "_csvs", OutputFormat.parquet: "_parquet"}


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
    format: OutputFormat | None = None
    csv_dir: Path | None = None
    no_workbook: bool = False
    html: str | None = None

    def for_one(self, trace: Path) -> Places:
        """Where the report of a single trace goes."""
        (stem,) = report_stems([trace], one_folder=False)
        return self._places(stem, trace.parent / stem, several=False)

    def for_several(self, traces: Sequence[Path]) -> list[Places]:
        """Where the reports of several traces go, no two alike: options name folders then."""
        stems = (report_stems(traces, one_folder=one) for one in (True, False))
        return [
            self._places(stem, trace.parent / own, several=True)
            for trace, stem, own in zip(traces, *stems, strict=True)
        ]

    def for_comparison(self, folder: Path, *, several: bool) -> Places:
        """Where a comparison goes: to this folder by default; beside reports of several traces."""
        return self._places("comparison", folder / "comparison", several=several)

    def _places(self, stem: str, default: Path, *, several: bool) -> Places:
        """The files of a report; `default` is that of `--output`, without suffix."""
        files: list[tuple[Path, OutputFormat | Literal["html"]]] = []
        if self.csv_dir is not None:
            files.append((self.csv_dir / stem if several else self.csv_dir, OutputFormat.csv))
        asked = self.output is not None or self.format is not None
        if asked or not (self.no_workbook or self.csv_dir or self.html is not None):
            chosen = self._format(several=several)
            place = Path(self.output or default.with_name(_file_name(default.name, chosen)))
            in_folder = several or (not chosen.is_folder and _is_folder(self.output or ""))
            if self.output is not None and in_folder:
                place /= _file_name(stem, chosen)
            files.append((place, chosen))
        if self.html is not None:
            files.append((_page(self.html, f"{stem}.html", several=several), writing.PAGE))
        resolved = [os.path.realpath(path) for path, _ in files]
        for at, path in enumerate(resolved):
            if path in resolved[:at]:
                raise UsageError(f"{files[at][0]}: is named for two outputs; name two")
        return dict(files)

    def check_extras(self) -> None:
        """Check that what the formats need is installed, before a trace is read for nothing."""
        if self.format is not None:
            writing.require_format(self.format)
        if self.html is not None:
            writing.require_format(writing.PAGE)

    def _format(self, *, several: bool) -> OutputFormat:
        """The format that was asked for, or that the name of the output tells."""
        output = self.output or ""
        suffix = Path(output).suffix.lower()
        told = writing.FORMAT_OF_SUFFIX.get(suffix)
        is_folder = self.output is None or _is_folder(output)
        if several and not is_folder and (told or suffix in _PAGE_SUFFIXES):
            raise UsageError(f"{output}: names one file for several traces; name a folder")
        if several or is_folder:
            return self.format or OutputFormat.xlsx
        if output == "-":
            raise UsageError("a report cannot go to standard output; name a file")
        problem = _NO_REPORTS.get(suffix)
        if problem is None and told is None and self.format in (None, OutputFormat.xlsx):
            problem = "an Excel file is named .xlsx"
            if self.format is None:
                problem = "the report is an Excel file; name it .xlsx (.json and .md do too), or"
                problem += " give --format or --csv-dir"
        if problem is None and self.format and told and told is not self.format:
            problem = f"does not go with --format {self.format}"
        if problem is not None:
            raise UsageError(f"{output}: {problem}")
        return self.format or told or OutputFormat.xlsx


def write_outputs(
    report: Report, places: Places, inputs: Sequence[Path], *, force: bool
) -> list[Path]:
    """Write a report, and say on standard error which tables are large for a workbook."""
    from tracelens_ext.report.excel import slow_tables

    written = writing.write_report(report, places, inputs, force=force)
    for line in slow_tables(report.sheets) if OutputFormat.xlsx in places.values() else ():
        print_line(line, error=True)
    return written


def check_outputs(places: Places, inputs: Sequence[Path], *, force: bool) -> None:
    """Refuse to write over inputs and strangers' files, and tell of unfinished folders."""
    for note in writing.check_places(places, inputs, force=force):
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
    taken = {*zip(keys, map(str.casefold, names), strict=True)}
    used = set[tuple[Path, str]]()
    for at, (folder, name) in enumerate(zip(keys, names, strict=True)):
        number = 1
        while (key := (folder, names[at].casefold())) in used or (number > 1 and key in taken):
            number += 1
            names[at] = f"{name}_{number}"
        used.add(key)
    return names


def _file_name(stem: str, chosen: OutputFormat) -> str:
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
    given: Sequence[Path], trace: Path, *, force: bool, json: bool, every: bool = False
) -> None:
    """Check that texts replace no file of the user, not the trace, and not one another.

    `json`, `every`: whether `--json` and `--all` are given, which do not go with all others.
    """
    if every and not json:
        raise UsageError("--all is about the JSON; add --json")
    if json and STANDARD_OUTPUT in given:
        raise UsageError("--json writes to standard output, so a text cannot go there too")
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


def tell_written(paths: Sequence[Path]) -> None:
    """Say which files were written; on standard error where a text is on standard output."""
    for path in paths:
        if path != STANDARD_OUTPUT:
            print_line(f"Wrote {path}", error=STANDARD_OUTPUT in paths)


def _is_our_text(path: Path) -> bool:
    """Whether a file begins as the texts of this program do."""
    begins = tuple(f"{title}\n{'=' * 50}\n".encode() for title in (KERNEL_TITLE, GAP_TITLE))
    with suppress(OSError, ValueError):
        if path.is_file():
            with path.open("rb") as stream:
                return stream.read(_LOOK_BYTES).startswith(begins)
    return False
