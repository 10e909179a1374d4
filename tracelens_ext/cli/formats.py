"""`tracelens-ext formats`: the formats that are read, and how to record each."""

from __future__ import annotations

import typer


def formats() -> None:
    """List the formats that are read, what each needs, and how to record it."""
    from tracelens_ext.readers.formats import offered_readers, suffixes_of

    for offered in offered_readers():
        reader, plugin = offered.item, offered.plugin
        name, extra, how_to_record = (
            getattr(reader, attribute, "") for attribute in ("name", "extra", "how_to_record")
        )
        typer.echo(
            (name or type(reader).__name__) + ("" if plugin.own else f"  (plugin {plugin.name})")
        )
        facts = {
            "files": ", ".join(f"*{suffix}" for suffix in suffixes_of(reader)),
            "needs": f"pip install 'tracelens-ext[{extra}]'" if extra else "",
            "record": how_to_record,
        }
        for label, text in facts.items():
            if text:
                typer.echo(f"    {label + ':':8} {text}")
