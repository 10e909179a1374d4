"""The commands of this distribution; a command is imported when it is called.

What each help text ends with:

    report trace.json.gz
    report trace.json.gz --html report.html --csv-dir tables
    report runs/*.json.gz --compare -o reports/
    kernels trace.json.gz --top 20 --sort duration-percentage
    kernels trace.json.gz --category GEMM
    kernels trace.json.gz --gaps --output kernels.txt
    gaps trace.json.gz
    gaps trace.json.gz --pstep 7 --stream 7
    gaps trace.json.gz --output - | less
    iterations trace.json.gz
    iterations trace.json.gz --annotation 'train_step.*'
    iterations trace.json.gz --json
    tree trace.json.gz --depth 6
    tree trace.json.gz --op Attention --min-percent 0.1
    tree trace.json.gz --folded > stacks.txt
    memory trace.json.gz
    memory trace.json.gz --by module
    memory snapshot.pickle --top 20
    phases trace.json.gz
    phases trace.json.gz --phase 'decode=^decode' --phase 'prefill=^prefill'
    phases trace.json.gz --capture captures/
    counters trace.json.gz
    counters run.sqlite
    counters trace.json.gz --json
    sql --schema
    sql trace.json.gz 'select name, count(*) from events group by name limit 9'
    sql trace.json.gz 'select * from kernel_summary' --csv
    mcp traces/
    mcp traces/ /data/profiles
    mcp .
    export trace.json.gz -o small.json.gz --iteration 7
    export run.nsys-rep -o run.json.gz --window 1200ms-1300ms
    export trace.json.gz -o trace.db
    findings trace.json.gz
    findings trace.json.gz --json --intervals
    findings trace.json.gz --device-peaks 'H100 SXM'
    what-if trace.json.gz
    what-if trace.json.gz --change GEMM=0.5 --change host=0
    what-if trace.json.gz --iteration 7 --csv changes.csv
    roofline trace.json.gz
    roofline trace.json.gz --family GEMM --sort percent
    roofline trace.json.gz --device-peaks peaks.toml
    explain ampere_sgemm_128x64_tn
    explain --op aten::linear
    explain my_kernel --rules my_rules.toml
    compare before.json.gz after.json.gz
    compare before.json.gz after.json.gz --html changes.html
    compare new.json.gz --baseline nightly/ --fail-if 'total_time > +5%'
    rules list --category GEMM
    rules check my_rules.toml
    rules suggest trace.json.gz -o my_rules.toml
    plugins
    plugins list --strict
    plugins new my-company-kernels
    formats
    formats | grep nsys
    formats > formats.txt
    cache info
    cache clear
    cache info | head
    demo
    demo demo.json.gz --vendor amd
    demo job.json.gz --ranks 4
"""

from __future__ import annotations

from tracelens_ext.hooks import Command, hookimpl

#: Name, line of `--help`, and group. A command is the function of its name, or a `typer.Typer`, in
#: the file of its name or that of `_FILES`.
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
_FILES = {
    "tree": "kernels",
    **dict.fromkeys(("counters", "memory", "phases"), "iterations"),
    **dict.fromkeys(("roofline", "what_if"), "findings"),
    **dict.fromkeys(("mcp", "sql"), "export"),
    **dict.fromkeys(("cache", "demo", "explain", "formats", "plugins", "rules"), "installed"),
}


@hookimpl
def tracelens_commands() -> list[Command]:
    """Our own commands, but for those that packages of this distribution bring."""
    result = []
    lines = [line.strip() for line in (__doc__ or "").splitlines()]
    for name, summary, group in _COMMANDS:
        function = name.replace("-", "_")
        function = f"tracelens_ext.cli.{_FILES.get(function, function)}:{function}"
        examples = tuple(line for line in lines if line.partition(" ")[0] == name)
        result.append(Command(name, summary, function, group, examples))
    return result
