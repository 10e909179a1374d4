"""`tracelens-ext formats`: which formats are read, what each needs, and how to record it."""

from __future__ import annotations

import typer

from tracelens_ext.hooks import Command


def formats() -> None:
    """List the formats that are read, what each needs, and how to record it."""
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
        }
        for label, text in facts.items():
            if text:
                typer.echo(f"    {label + ':':8} {text}")


COMMAND = Command(
    name="formats",
    summary="List the formats that are read, and how to record them.",
    function=formats,
    group="Extend",
    examples=("formats", "formats | grep nsys", "formats > formats.txt"),
)
