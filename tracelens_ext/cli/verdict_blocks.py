"""Verdicts on the ranks of a job on a terminal, as `fleet` and `ranks` show them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from tracelens_ext.cli.screen import Block
from tracelens_ext.lazy import pd

_PLACE_COLUMNS = ("rank", "process_group", "iteration")


def verdict_blocks(verdicts: pd.DataFrame) -> Iterator[Block]:
    """Yield a sentence for each verdict."""
    if not len(verdicts):
        yield "No slow ranks, slow links or incomplete collectives found."
    # Parquet files return integers as floats where some are missing.
    texts = verdicts.astype({"rank": "Int64"}).astype(object)
    for row in texts.where(texts.notna(), "").to_dict("records"):
        yield _sentence(row)


def _sentence(row: dict[Hashable, Any]) -> str:
    """Return the sentence of a verdict, such as `Slow rank: rank 3 (computation): …`."""
    parts = [_words(row["verdict"]).capitalize()]
    places = [
        f"{_words(column)} {row[column]}"
        for column in _PLACE_COLUMNS
        if row[column] != ""
    ]
    if places:
        parts.append(", ".join(places))
    if row["cause"] and row["cause"] != row["verdict"]:
        parts[-1] += f" ({_words(row['cause'])})"
    return f"{': '.join(parts)}: {row['evidence']}."


def _words(name: str) -> str:
    return name.replace("micro_batches", "micro-batches").replace("_", " ")
