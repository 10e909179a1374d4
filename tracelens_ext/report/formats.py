"""Write the tables of a report as JSON, Markdown, CSV and Parquet.

JSON is one document, for scripts. It begins with its generator, by which later runs recognize their
own files. NaN and infinities are null (RFC 8259 has no form for them):

    {"generator": "tracelens-ext", "version": …, "tables_version": …, "title": …,
     "facts": {label: value}, "notes": [text], "tables": {name: [{column: value}, …]}}

Markdown has tables in GitHub's form, to paste into an issue or a pull request. Names of kernels are
full of characters that Markdown and HTML read as markup. A text with such characters becomes a code
span, in which they have no meaning. In a table, only the bar must be escaped within a code span
(GitHub Flavored Markdown 0.29, 4.10).

CSV has one file per table, in UTF-8, with complete texts and exact numbers. Parquet keeps types and
all digits, for pandas, DuckDB, Spark and others. It needs pyarrow, which the extra `parquet`
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
from tracelens_ext.report.atomic_folders import write_folder
from tracelens_ext.report.manifest import ABOUT_US, GENERATOR
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

# Integers outside of this range become texts.
_LEAST_INTEGER = -(2**63)
_LARGEST_INTEGER = 2**64 - 1


def plain_headers(frame: pd.DataFrame) -> list[str]:
    """Return different texts for the names of all columns: a second `a` becomes `a_2`."""
    names = (encodable(header_text(name)) for name in frame.columns)
    return unique(names, "{}_{}".format, same=str)


def plain_column(series: pd.Series) -> list[Plain]:
    """Return the values of a column as plain Python values.

    Missing values, NaN and infinities become None; values of other types become texts.
    """
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
        elif type(value) is str and value.isascii():  # a shortcut for nearly all values
            values.append(value)
        else:
            values.append(_plain_cell(value))
    return values


def _plain_cell(value: object) -> Plain:
    """Return a value as JSON has it: NaN and infinities as None, other types as texts."""
    import numpy as np

    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return float(value)
    if isinstance(value, bool | int) and _LEAST_INTEGER <= value <= _LARGEST_INTEGER:
        return value
    return encodable(str(value))


#: The number of rows that are encoded at once.
_ROWS_AT_ONCE = 8192


def json_safe(text: str) -> str:
    """Escape characters in JSON or TOML that could act on a terminal, or deceive the reader."""
    if text.isascii() and "\x7f" not in text:
        return text
    return UNSAFE.sub(_escape, text)


def nested_json_text(value: object, *, indent: int | None = 1) -> str:
    """Return dictionaries, lists, tables and plain values as JSON that is safe on a terminal.

    A table becomes a list of its rows.

    Args:
        value: the document.
        indent: the number of spaces for each level; None for the whole document on one line.
    """
    import msgspec

    value = earlier_document(value)
    encoder = msgspec.json.Encoder(enc_hook=_encodable_value)
    try:
        encoded = encoder.encode(value)
    except (TypeError, UnicodeEncodeError):
        # A key is not a text, or a text has a lone surrogate.
        encoded = encoder.encode(_plain(value))
    formatted = msgspec.json.format(encoded, indent=indent or 0)
    text = formatted.decode()
    return json_safe(text)


def _encodable_value(value: object) -> object:
    """Return a value that the encoder knows for a value of a type that it does not know."""
    if isinstance(value, pd.DataFrame):
        return _records(value)
    if isinstance(value, Mapping):
        return dict(value)
    column = pd.Series([value], dtype=object)
    return plain_column(column)[0]


def _plain(value: object) -> object:
    """Return a document in which all texts are encodable and all keys are texts."""
    if isinstance(value, pd.DataFrame):
        return _records(value)
    if isinstance(value, Mapping):
        return {encodable(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | bool | int | float):
        # Most values are of these types; a column of one cell would take 30 µs for each of them.
        return None if value is None else _plain_cell(value)
    return plain_column(pd.Series([value], dtype=object))[0]


def _records(frame: pd.DataFrame) -> list[dict[str, Plain]]:
    """Return the rows of a table as dictionaries."""
    headers = plain_headers(frame)
    columns = [plain_column(frame.iloc[:, place]) for place in range(len(headers))]
    return [dict(zip(headers, row, strict=True)) for row in zip(*columns, strict=True)]


def _escape(match: re.Match[str]) -> str:
    """Return a character as a JSON escape, except control characters of the JSON's own layout."""
    character = match[0]
    if character < "\x7f":
        return character
    quoted = json.dumps(character)
    escaped = quoted[1:-1]
    return escaped.replace("\x7f", "\\u007f")


def json_text(report: Report) -> Iterator[str]:
    """Yield a report as JSON, in pieces; no text in it can act on a terminal."""
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
    """Yield the rows of a table as JSON, some thousand rows at a time."""
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


#: The first line of Markdown output, by which later runs recognize their own files.
MARK = f"<!-- written by {GENERATOR} -->"
# Texts without markup. An underscore within a word does not begin emphasis, a parenthesis without a
# bracket is not a link, and a colon before a space does not end an emoji code. The possessive
# quantifiers (`++`, `*+`) never backtrack, so the time for a long name is linear in its length.
_WORD = r"[^\W_]++(?:_++[^\W_]++)*+"
_HARMLESS = re.compile(rf"(?:{_WORD}|[ %(),./+=;\u2010-\u201d\u2192-]|:(?=\s|$))*+")
_WEB = re.compile(r"www\.|//", re.IGNORECASE)  # GitHub turns such texts into links
_STARTS_A_BLOCK = re.compile(r"[-+=]|[0-9]+[.)]$")
_BACKTICKS = re.compile("`+")


def markdown_text(report: Report) -> Iterator[str]:
    """Yield a report as Markdown, in pieces."""
    from tracelens_ext.report.excel_text import fact_text  # imports numpy

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
    """Return Markdown for a text on one line: the text itself, or a code span if it has markup."""
    text = safe_text(encodable(text)).strip()
    is_harmless = _HARMLESS.fullmatch(text) is not None
    if is_harmless and not _WEB.search(text):
        return text
    return _code(text)


def cell(text: str) -> str:
    """Return Markdown for a text in a cell of a table."""
    return inline(text).replace("|", "\\|")


def _code(text: str) -> str:
    """Return a code span, whose fence is longer than any run of backticks in the text."""
    runs = [len(run) for run in _BACKTICKS.findall(text)]
    fence = "`" * (max(runs, default=0) + 1)
    pad = ""
    if text.startswith("`") or text.endswith("`"):
        pad = " "
    return f"{fence}{pad}{text}{pad}{fence}"


def _sentence(text: str) -> str:
    """Return Markdown for a sentence, in which only words with markup become code spans."""
    words = [inline(word) for word in text.split()]
    if words and _STARTS_A_BLOCK.match(words[0]):
        words[0] = _code(words[0])
    return " ".join(words)


def _table(frame: pd.DataFrame) -> Iterator[str]:
    """Yield the lines of a table in Markdown."""
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
    """Return the numbers of a column as texts, all with the same number of decimals."""
    numbers = [
        value if isinstance(value, int | float) else math.nan for value in values
    ]
    notation = Shown.of(header, numbers)
    return [notation.text(number) for number in numbers]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


_NOT_IN_FILE_NAME = re.compile(r'[\\/:*?"<>|\x00-\x1f\x7f\ud800-\udfff]')
# Names that Windows reserves for devices, with any suffix.
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
# File systems allow 255 bytes; the rest is for numbers and the suffix.
_NAME_BYTES = 200


def file_names(wanted: Iterable[str], suffix: str) -> list[str]:
    """Return names of files for tables that every operating system accepts.

    No two names are equal, even if upper and lower case do not count.
    """
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
    """Write each table without its index to a `.csv` or `.parquet` file, with `write_folder`."""
    write = write_csv if suffix == ".csv" else write_parquet
    tables = earlier_tables(sheets)
    writers = {}
    for file_name, frame in zip(
        file_names(tables, suffix), tables.values(), strict=True
    ):
        writers[file_name] = partial(write, frame=frame)
    return write_folder(folder, writers)


#: The name of the error handler below, in the registry of codecs.
_REPLACE_SURROGATES = "tracelens_ext.replace"


def write_csv(path: Path, frame: pd.DataFrame) -> None:
    """Write a table as CSV with all digits of numbers, and with line feeds at the ends of lines.

    None, NaN and NaT become empty fields; lone surrogates become U+FFFD.
    """
    codecs.register_error(_REPLACE_SURROGATES, _replace_surrogates)
    # The csv module does not quote a single carriage return, which some readers take for the end
    # of a line. If the file has one, it is written again with all texts in quotes.
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
    """Encode each character for which UTF-8 has no bytes as U+FFFD."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "\ufffd".encode() * (error.end - error.start), error.end


def write_parquet(path: Path, frame: pd.DataFrame) -> None:
    """Write a table as Parquet; missing values, NaN and infinities are null."""
    from pyarrow import parquet

    parquet.write_table(arrow_table(frame), path)


def arrow_table(frame: pd.DataFrame) -> Any:  # noqa: ANN401  # pyarrow has no type hints
    """Return a table of pyarrow; a column of several types becomes a column of texts."""
    import pyarrow

    arrays = [_arrow_array(frame.iloc[:, place]) for place in range(frame.shape[1])]
    table = pyarrow.Table.from_arrays(arrays, names=plain_headers(frame))
    return table.replace_schema_metadata({"generator": GENERATOR})


def _arrow_array(series: pd.Series) -> Any:  # noqa: ANN401
    """Return an array of the common type of a column's values, or else of texts."""
    import pyarrow

    values = plain_column(series)
    types = {type(value) for value in values if value is not None}
    if not types:  # a column without values has the type of its dtype
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
    except OverflowError:  # an integer of more than 64 bits
        pass
    texts = [None if value is None else str(value) for value in values]
    return pyarrow.array(texts)
