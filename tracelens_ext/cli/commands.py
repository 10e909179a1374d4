"""The commands of this distribution; a command is imported when it is called."""

from __future__ import annotations

from tracelens_ext.hooks import Command, hookimpl

#: Name, line of `--help`, and group. A command is the function of its name, or a Typer `app`, in
#: the file of its name.
_COMMANDS = (
    ("report", "Write the report of traces: workbook, page, tables.", "Look"),
    ("kernels", "List kernels by count or duration.", "Look"),
    ("gaps", "Show why the GPU was idle.", "Look"),
    ("iterations", "Show the time of each iteration, and the odd ones.", "Look"),
    ("tree", "Show the call tree with the GPU time below each operation.", "Look"),
    ("memory", "Show what was alive at the peak, and who allocated it.", "Look"),
    ("phases", "Show prefill and decode of a serving engine.", "Look"),
    ("counters", "Show queue lengths and the speed of copies.", "Look"),
    ("sql", "Query the events and tables of a trace with SQL.", "Look"),
    ("mcp", "Serve traces to agents, over the Model Context Protocol.", "Look"),
    ("export", "Write a trace for Perfetto, or as a database.", "Look"),
    ("findings", "Show what would save the most time, and what to do.", "Explain"),
    ("what-if", "Show the wall time if something were faster, or gone.", "Explain"),
    ("roofline", "Show how far operations are from what the GPU can do.", "Explain"),
    ("explain", "Show which rule gives a kernel its category.", "Explain"),
    ("compare", "Compare traces or their reports with the first.", "Compare"),
    ("rules", "List, check and draft rules of categories.", "Extend"),
    ("plugins", "Show installed plugins, and what is wrong with them.", "Extend"),
    ("formats", "List the formats that are read, and how to record them.", "Extend"),
    ("cache", "Look at the cache of parsed traces, or empty it.", "Extend"),
    ("demo", "Write a demo trace.", "Extend"),
)
_OF_SEVERAL = frozenset({"rules", "plugins", "cache"})


@hookimpl
def tracelens_commands() -> list[Command]:
    """Our own commands, but for those that packages of this distribution bring."""
    result = []
    for name, summary, group in _COMMANDS:
        module = name.replace("-", "_")
        function = f"tracelens_ext.cli.{module}:{'app' if name in _OF_SEVERAL else module}"
        result.append(Command(name, summary, function, group))
    return result
