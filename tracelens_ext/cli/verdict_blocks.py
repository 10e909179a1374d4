"""Verdicts on the ranks of a job on a terminal, as `fleet` and `ranks` show them."""

from __future__ import annotations

from collections.abc import Iterator

from tracelens_ext.cli.screen import Block
from tracelens_ext.lazy import pd

_PLACE_COLUMNS = ("rank", "process_group", "iteration")


def verdict_blocks(verdicts: pd.DataFrame) -> Iterator[Block]:
    """Yield which ranks and links are slow, in sentences."""
    if not len(verdicts):
        yield "No slow ranks, slow links or incomplete collectives found."
    # Parquet files give numbers with gaps as floats.
    texts = verdicts.astype({"rank": "Int64"}).astype(object)
    for row in texts.where(texts.notna(), "").to_dict("records"):
        places = [
            f"{column} {row[column]}" for column in _PLACE_COLUMNS if row[column] != ""
        ]
        cause = f" ({row['cause']})" if row["cause"] else ""
        verdict = str(row["verdict"]).replace("_", " ")
        title = f"{verdict.capitalize()}: {', '.join(places)}{cause}"
        yield f"{title}: {row['evidence']}."
