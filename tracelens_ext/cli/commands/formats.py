"""`tracelens-ext formats`: lists the formats, what each needs, and how to record it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import typer

from tracelens_ext.hooks import Command


class _OtherFile(NamedTuple):
    """A kind of file that is not a trace, but that a certain command reads."""

    name: str
    facts: dict[str, str]  #: label → text


_OTHER_FILES: Final = (
    _OtherFile(
        name="PyTorch NCCL flight recorder dump (pickle or JSON, one file per rank)",
        facts={
            "files": "nccl_trace_rank_N, trace_rank_N",
            "record": "TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1",
            "read": "tracelens-ext ranks FOLDER",
        },
    ),
    _OtherFile(
        name="PyTorch memory snapshot",
        facts={
            "files": "*.pickle, *.pickle.gz",
            "record": "torch.cuda.memory._dump_snapshot('snapshot.pickle')",
            "read": "tracelens-ext memory FILE",
        },
    ),
)


def formats() -> None:
    """List the supported formats, what each requires, and how to record it."""
    from tracelens_ext.readers.formats import offered_readers, suffixes_of

    for offered in offered_readers():
        reader = offered.item
        name = getattr(reader, "name", "") or type(reader).__name__
        mark = "" if offered.plugin.own else f"  (plugin {offered.plugin.name})"
        typer.echo(name + mark)
        extra = getattr(reader, "extra", "")
        facts = {
            "files": ", ".join(f"*{suffix}" for suffix in suffixes_of(reader)),
            "needs": f"pip install 'tracelens-ext[{extra}]'" if extra else "",
            "record": getattr(reader, "how_to_record", ""),
            "ranks": getattr(reader, "merged_ranks", ""),
        }
        _print_facts(facts)
    for other in _OTHER_FILES:
        typer.echo(other.name)
        _print_facts(other.facts)


def _print_facts(facts: Mapping[str, str]) -> None:
    for label, text in facts.items():
        if text:
            typer.echo(f"    {label + ':':8} {text}")


COMMAND = Command(
    name="formats",
    summary="List the supported trace formats and how to record them.",
    function=formats,
    group="Manage",
    examples=("formats", "formats | grep nsys", "formats > formats.txt"),
)
