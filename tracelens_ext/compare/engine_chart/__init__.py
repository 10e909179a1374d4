"""The engine/model chart: where the elapsed time of runs went, GPU categories and all the rest.

FILE,ENGINE,MODEL,SECONDS ─▶ `specification` ─▶ `runs`, their sums and tables ─▶ `page`, and CSV.
"""

from __future__ import annotations

from tracelens_ext.hooks import Command, hookimpl


@hookimpl
def tracelens_commands() -> list[Command]:
    """The commands of this package."""
    return [
        Command(
            "chart",
            "Draw where the time of runs went: a stacked bar each.",
            "tracelens_ext.cli.nsys:chart",
            "Compare",
            examples=(
                "chart run.nsys-rep,vllm,llama,100 --out-dir results",
                "chart a.sqlite,vllm,llama,0 b.sqlite,vllm,gpt-oss,0 --title 'Two models'",
                "chart trace.json.gz --categorizer builtin --per-device",
            ),
        )
    ]
