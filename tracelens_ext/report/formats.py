"""A report's tables as JSON, Markdown, CSV and Parquet.

JSON is one document, for scripts; its generator comes first, which tells whose file this is, and
what is not a number is null (RFC 8259):

    {"generator": "tracelens-ext", "version": …, "tables_version": …, "title": …,
     "facts": {label: value}, "notes": [text], "tables": {name: [{column: value}, …]}}

Markdown has GitHub's tables, to paste into an issue or a pull request. A kernel's name is full of
what Markdown and HTML read as markup. So a text with anything but letters, digits and harmless
signs becomes a code span, in which nothing is. Of a code span in a table only the bar must be
escaped, as GitHub Flavored Markdown (0.29, 4.10) says.

CSV, a file a table, has everything at full length, exact numbers, UTF-8. Parquet keeps types and
all digits, for pandas, DuckDB, Spark and others; it needs pyarrow, which the extra `parquet`
installs.
"""

from __future__ import annotations

import codecs
import csv
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tracelens_ext.compatibility.earlier_names import (
    earlier_document,
    earlier_table,
    earlier_table_name,
    earlier_tables,
)
from tracelens_ext.lazy import pd
from tracelens_ext.report.manifest import ABOUT_US, GENERATOR, write_folder
from tracelens_ext.report.report import Report
from tracelens_ext.report.tables.units import (
    FIRST_FACTS,
    Shown,
    header_text,
    is_numeric,
)
from tracelens_ext.report.terminal import UNSAFE, safe_text
from tracelens_ext.text import encodable, unique

Plain = bool | int | float | str | None

# whole numbers beyond are texts
_LEAST = -(2**63)
_MOST = 2**64 - 1


def plain_headers(frame: pd.DataFrame) -> list[str]:
    """The names of the columns as texts, no two alike: a second `a` is called `a_2`."""
    names = (encodable(header_text(name)) for name in frame.columns)
    return unique(names, "{}_{}".format, same=str)


def plain_column(series: pd.Series) -> list[Plain]:
    """The values of a column; what is missing, not a number or infinite is None, the odd a text."""
    import numpy as np

    dtype = series.dtype
    kind = getattr(dtype, "kind", "O")
    if kind in "biu" and not series.hasnans:
        return list(series.tolist())
    if kind == "f":
        numbers = series.to_numpy(dtype="float64", na_value=math.nan)
        if np.isfinite(numbers).all():
            return list(numbers.tolist())
        return [
            number if math.isfinite(number) else None for number in numbers.tolist()
        ]
    missing = series.isna().tolist()
    values: list[Plain] = []
    for value, is_missing in zip(series.tolist(), missing, strict=True):
        if is_missing:
            values.append(None)
        elif type(value) is str and value.isascii():  # nearly all
            values.append(value)
        else:
            values.append(_plain_cell(value))
    return values


def _plain_cell(value: object) -> Plain:
    """Return a value that is not missing as JSON has it; what JSON has no form for, as a text."""
    import numpy as np

    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return float(value)
    if isinstance(value, bool | int) and _LEAST <= value <= _MOST:
        return value
    return encodable(str(value))


_ROWS_AT_ONCE = 8192


def json_safe(text: str) -> str:
    """Escape, in JSON or TOML, what beyond U+007E could act on a terminal or deceive its reader."""
    return text if text.isascii() and "\x7f" not in text else UNSAFE.sub(_escape, text)


def nested_json_text(value: object, *, indent: int | None = 1) -> str:
    """Write dictionaries, lists, tables and plain values as JSON; as safe as a report.

    A table becomes the list of its rows.

    Args:
        value: The document.
        indent: Blanks for each level, a line for each value; None for all in one line.
    """
    import msgspec

    value = earlier_document(value)
    encoder = msgspec.json.Encoder(enc_hook=_encodable_value)
    try:
        encoded = encoder.encode(value)
    except (TypeError, UnicodeEncodeError):  # an odd key, a lone surrogate
        encoded = encoder.encode(_plain(value))
    formatted = msgspec.json.format(encoded, indent=indent or 0)
    text = formatted.decode()
    return json_safe(text)


def _encodable_value(value: object) -> object:
    """Return what stands in JSON for a value of a type that the encoder does not know."""
    if isinstance(value, pd.DataFrame):
        return _records(value)
    if isinstance(value, Mapping):
        return dict(value)
    column = pd.Series([value], dtype=object)
    return plain_column(column)[0]


def _plain(value: object) -> object:
    """Return a document in which every text is encodable and every key a text."""
    if isinstance(value, pd.DataFrame):
        return _records(value)
    if isinstance(value, Mapping):
        return {encodable(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | bool | int | float):
        # By far the most; a column of one cell would cost 30 µs each.
        return None if value is None else _plain_cell(value)
    return plain_column(pd.Series([value], dtype=object))[0]


def _records(frame: pd.DataFrame) -> list[dict[str, Plain]]:
    """Return the rows of a table."""
    headers = plain_headers(frame)
    columns = [plain_column(frame.iloc[:, place]) for place in range(len(headers))]
    return [dict(zip(headers, row, strict=True)) for row in zip(*columns, strict=True)]


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    if character < "\x7f":
        return character
    quoted = json.dumps(character)
    escaped = quoted[1:-1]
    return escaped.replace("\x7f", "\\u007f")


def json_text(report: Report) -> Iterator[str]:
    """Write a report as JSON, in pieces; on a terminal too no name in it does anything."""
    document = {
        **ABOUT_US,
        "title": report.title,
        "facts": dict(report.facts),
        "notes": report.notes,
        **report.members,
    }
    beginning = nested_json_text(document).removesuffix("\n}")
    yield beginning + ',\n "tables": {'
    separator = ""
    for name, frame in report.sheets.items():
        yield f"{separator}\n  {nested_json_text(earlier_table_name(name))}: ["
        for text in _rows(earlier_table(frame, name)):
            yield json_safe(text)
        yield "]"
        separator = ","
    yield "\n }\n}\n"


def _rows(frame: pd.DataFrame) -> Iterator[str]:
    """Write the rows of a table, some thousand at once."""
    import msgspec

    encoder = msgspec.json.Encoder()
    headers = plain_headers(frame)
    separator = ""
    for start in range(0, len(frame), _ROWS_AT_ONCE):
        part = frame.iloc[start : start + _ROWS_AT_ONCE]
        if headers:
            columns = [
                plain_column(part.iloc[:, place]) for place in range(len(headers))
            ]
            records = [
                dict(zip(headers, values, strict=True))
                for values in zip(*columns, strict=True)
            ]
        else:
            records = [{} for _ in range(len(part))]
        lines = encoder.encode_lines(records).decode()
        text = lines.removesuffix("\n").replace("\n", ",\n   ")
        yield f"{separator}\n   {text}"
        separator = ","


#: The first line, which tells whose file this is.
MARK = f"<!-- written by {GENERATOR} -->"
# An underscore within a word emphasizes nothing, a parenthesis without a bracket links nothing,
# and a colon before a blank ends no emoji code.
# (Nothing is tried twice: a name of a megabyte takes no longer than its length.)
_WORD = r"[^\W_]++(?:_++[^\W_]++)*+"
_HARMLESS = re.compile(rf"(?:{_WORD}|[ %(),./+=;\u2010-\u201d\u2192-]|:(?=\s|$))*+")
_WEB = re.compile(r"www\.|//", re.IGNORECASE)  # becomes a link by itself
_STARTS_A_BLOCK = re.compile(r"[-+=]|[0-9]+[.)]$")
_BACKTICKS = re.compile("`+")


def markdown_text(report: Report) -> Iterator[str]:
    """Write a report as Markdown, in pieces."""
    from tracelens_ext.report.excel_text import fact_text  # which needs numpy

    yield f"{MARK}\n\n# {inline(report.title)}\n"
    for label, value in report.facts:
        if label in FIRST_FACTS:
            yield f"\n{_sentence(f'{label}: {value}')}\n"
    for answer in report.answers:
        if answer.links:
            yield f"\n## {inline(answer.title)}\n"
            table = answer.shown_rows(report.sheets[answer.sheet])
            if len(table):
                yield from _table(table)
    if report.notes:
        yield "\n"
        for note in report.notes:
            yield f"- {_sentence(note)}\n"
    if report.facts:
        yield "\n|  |  |\n| :--- | :--- |\n"
        for label, value in report.facts:
            text = fact_text(label, value).text
            yield _line([cell(label), cell(text)])
    for name, frame in report.sheets.items():
        yield f"\n## {inline(name)}\n"
        description = report.descriptions.get(name)
        if description:
            yield f"\n{_sentence(description)}\n"
        yield from _table(frame)


def inline(text: str) -> str:
    """Return a text as it is to be read, on one line: as it stands, or as a code span."""
    text = safe_text(encodable(text)).strip()
    is_harmless = _HARMLESS.fullmatch(text) is not None
    if is_harmless and not _WEB.search(text):
        return text
    return _code(text)


def cell(text: str) -> str:
    """A text as the content of a cell of a table."""
    return inline(text).replace("|", "\\|")


def _code(text: str) -> str:
    """Return a code span: its fence is longer than any run of backticks in the text."""
    runs = [len(run) for run in _BACKTICKS.findall(text)]
    fence = "`" * (max(runs, default=0) + 1)
    pad = ""
    if text.startswith("`") or text.endswith("`"):
        pad = " "
    return f"{fence}{pad}{text}{pad}{fence}"


def _sentence(text: str) -> str:
    """Running text: only those of its words that need it become code."""
    words = [inline(word) for word in text.split()]
    if words and _STARTS_A_BLOCK.match(words[0]):
        words[0] = _code(words[0])
    return " ".join(words)


def _table(frame: pd.DataFrame) -> Iterator[str]:
    headers = plain_headers(frame)
    if not headers:
        return
    columns = []
    ruler = []
    for place, header in enumerate(headers):
        series = frame.iloc[:, place]
        values = plain_column(series)
        if is_numeric(series):
            ruler.append("---:")
            columns.append(_number_texts(header, values))
        else:
            ruler.append(":---")
            columns.append(
                ["" if value is None else cell(str(value)) for value in values]
            )
    yield "\n" + _line([cell(header) for header in headers]) + _line(ruler)
    for cells in zip(*columns, strict=True):
        yield _line(cells)


def _number_texts(header: str, values: Sequence[Plain]) -> list[str]:
    """Return the numbers of a column, all with as many decimals as its unit deserves."""
    numbers = [
        value if isinstance(value, int | float) else math.nan for value in values
    ]
    notation = Shown.of(header, numbers)
    return [notation.text(number) for number in numbers]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


_NOT_IN_FILE_NAME = re.compile(r'[\\/:*?"<>|\x00-\x1f\x7f\ud800-\udfff]')
# Names of devices on Windows, with any suffix.
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_NAME_BYTES = 200  # of the 255 that a file system allows, with room for the suffix


def file_names(wanted: Iterable[str], suffix: str) -> list[str]:
    """Names of files for tables that every system accepts, no two equal in any case of letters."""
    names = []
    for name in wanted:
        allowed = _NOT_IN_FILE_NAME.sub("_", name).strip().strip(".") or "table"
        if _RESERVED.fullmatch(allowed):
            allowed = f"_{allowed}"
        names.append(allowed.encode()[:_NAME_BYTES].decode(errors="ignore"))
    return [f"{name}{suffix}" for name in unique(names, "{}_{}".format)]


def write_tables(
    folder: str | os.PathLike[str],
    sheets: Mapping[str, pd.DataFrame],
    suffix: str = ".csv",
) -> list[Path]:
    """Write each table to a `.csv` or `.parquet` file, as `write_folder` says; no index."""
    write = write_csv if suffix == ".csv" else write_parquet
    tables = earlier_tables(sheets)
    writers = {}
    for file_name, frame in zip(
        file_names(tables, suffix), tables.values(), strict=True
    ):
        writers[file_name] = partial(write, frame=frame)
    return write_folder(folder, writers)


_REPLACE_SURROGATES = "tracelens_ext.replace"


def write_csv(path: Path, frame: pd.DataFrame) -> None:
    """Write a table: numbers have all their digits, and lines end with a line feed.

    None, NaN and NaT become empty fields, lone surrogates U+FFFD.
    """
    codecs.register_error(_REPLACE_SURROGATES, _replace_surrogates)
    # The csv module does not quote a bare carriage return, which readers take for a line's end.
    for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_NONNUMERIC):
        with path.open(
            "w", encoding="utf-8", errors=_REPLACE_SURROGATES, newline=""
        ) as stream:
            frame.to_csv(stream, index=False, lineterminator="\n", quoting=quoting)
        with path.open("rb") as written:
            has_carriage_return = any(b"\r" in line for line in written)
        if not has_carriage_return:
            break


def _replace_surrogates(error: UnicodeError) -> tuple[bytes, int]:
    """Encode what UTF-8 has no bytes for as U+FFFD, one for one."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "\ufffd".encode() * (error.end - error.start), error.end


def write_parquet(path: Path, frame: pd.DataFrame) -> None:
    """Write a table: what is missing, not a number or infinite is null."""
    from pyarrow import parquet

    parquet.write_table(arrow_table(frame), path)


def arrow_table(frame: pd.DataFrame) -> Any:  # noqa: ANN401  # pyarrow has no type hints
    """A table as pyarrow has it; a column of several types is one of texts."""
    import pyarrow

    arrays = [_arrow_array(frame.iloc[:, place]) for place in range(frame.shape[1])]
    table = pyarrow.Table.from_arrays(arrays, names=plain_headers(frame))
    return table.replace_schema_metadata({"generator": GENERATOR})


def _arrow_array(series: pd.Series) -> Any:  # noqa: ANN401
    """A column of one type: of its own where all values agree, else of texts."""
    import pyarrow

    values = plain_column(series)
    types = {type(value) for value in values if value is not None}
    if not types:  # an empty column still has the type that its table gives it
        names = {"b": "bool", "i": "int64", "u": "uint64", "f": "float64"}
        kind = getattr(series.dtype, "kind", "O")
        return pyarrow.array(
            values, type=pyarrow.type_for_alias(names.get(kind, "string"))
        )
    try:
        if types == {int, float}:
            return pyarrow.array(values, type=pyarrow.float64())
        if len(types) == 1:
            return pyarrow.array(values)
    except OverflowError:  # a whole number of more than 64 bits
        pass
    texts = [None if value is None else str(value) for value in values]
    return pyarrow.array(texts)
