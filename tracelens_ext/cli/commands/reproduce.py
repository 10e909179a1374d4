"""`tracelens-ext reproduce`: writes a script that runs operations of a trace in isolation."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracelens_ext.cli.options import AnalysisOptions, Capture, Force, GraphReadingFlags
from tracelens_ext.cli.screen import STANDARD_OUTPUT, tell, tell_written, write_text
from tracelens_ext.errors import UsageError
from tracelens_ext.hooks import Command

if TYPE_CHECKING:
    from tracelens_ext.reproduce.reproduction import Reproduction
    from tracelens_ext.reproduce.selection import OperationChoice
    from tracelens_ext.reproduce.specification import Specification


def reproduce(
    trace: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE",
            help=(
                "A PyTorch trace, the JSON printed by --json, or a TraceLens replay "
                "file. With --compare, two traces."
            ),
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Output script (- prints it)."
        ),
    ] = STANDARD_OUTPUT,
    op: Annotated[
        str | None,
        typer.Option(metavar="REGEX", help="Only operations whose name matches."),
    ] = None,
    row: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Only row N (from 1) of the table ops_unique_args."
        ),
    ] = None,
    finding: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Only the operations behind a finding, such as slow-gemm.",
        ),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(
            "--top",
            "-t",
            metavar="N",
            min=0,
            help=(
                "Number of operations, longest GPU time first; 0 for all.  [default: "
                "10]"
            ),
        ),
    ] = None,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Choose the operations whose GPU time differs most between two traces.",
        ),
    ] = False,
    json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print the recorded operations as JSON instead of a script."
        ),
    ] = False,
    capture: Capture = None,
    force: Force = False,
    *,
    reading: GraphReadingFlags,
) -> None:
    """Write a script that runs operations of a trace in isolation, on any GPU and any PyTorch.

    The script makes inputs like the recorded ones, measures each operation, and prints its time
    beside the recorded one. It needs PyTorch only.
    """
    from tracelens_ext.report.manifest import check_output
    from tracelens_ext.reproduce.reproduction import Reproduction
    from tracelens_ext.reproduce.selection import DEFAULT_TOP, OperationChoice

    _check_traces(trace, compare=compare)
    if json and output != STANDARD_OUTPUT:
        raise UsageError(
            "--json prints the recorded operations and writes no file; leave out "
            "--output"
        )
    if output != STANDARD_OUTPUT:
        check_output(output, trace, force=force or _is_our_script(output))
    choice = OperationChoice(
        op=op, row=row, finding=finding, top=DEFAULT_TOP if top is None else top
    )
    analysis = AnalysisOptions(
        kernel_categories=False, capture=capture, reading=reading
    )
    if compare:
        specification = _changed_operations(trace, choice, analysis)
    else:
        stored = _stored_operations(trace[0], choice, has_top=top is not None)
        specification = stored or _recorded_operations(trace[0], choice, analysis)
    reproduction = Reproduction(specification)
    if json:
        typer.echo(specification.as_json(), nl=False)
        return
    _write(reproduction, output)


def _check_traces(traces: list[Path], *, compare: bool) -> None:
    """Check that the number of traces fits the options."""
    if compare and len(traces) != 2:
        raise UsageError(f"--compare needs two traces, not {len(traces)}")
    if not compare and len(traces) != 1:
        raise UsageError(
            f"reproduce takes one trace, not {len(traces)}; only --compare takes two"
        )


def _is_our_script(path: Path) -> bool:
    """Return whether a file is a script that this command has written."""
    from tracelens_ext.reproduce.script import BEGINNING

    with suppress(OSError):
        if path.is_file():
            with path.open("rb") as stream:
                return stream.read(len(BEGINNING)) == BEGINNING.encode()
    return False


def _stored_operations(
    path: Path, choice: OperationChoice, *, has_top: bool
) -> Specification | None:
    """Return the operations of a specification or a replay file; None for another file."""
    from tracelens_ext.reproduce.selection import chosen_of_specification
    from tracelens_ext.reproduce.stored_operations import read_stored_operations

    specification = read_stored_operations(path)
    if specification is None:
        return None
    if not has_top:
        choice = replace(choice, top=0)
    return chosen_of_specification(specification, choice, path)


def _recorded_operations(
    trace: Path, choice: OperationChoice, analysis: AnalysisOptions
) -> Specification:
    """Return the chosen operations of a trace."""
    from tracelens_ext.cli.load import analyze
    from tracelens_ext.cli.messages import show_plugin_problems
    from tracelens_ext.reproduce.selection import select_operations

    analyzer = analyze(trace, analysis)
    specification = select_operations(analyzer, choice)
    show_plugin_problems(analyzer)
    return specification


def _changed_operations(
    traces: list[Path], choice: OperationChoice, analysis: AnalysisOptions
) -> Specification:
    """Return the operations whose GPU time differs most between two traces."""
    from tracelens_ext.cli.load import analyze
    from tracelens_ext.cli.messages import show_plugin_problems
    from tracelens_ext.reproduce.changes import select_changes

    if choice.row is not None or choice.finding is not None:
        raise UsageError(
            "--row and --finding refer to a single trace; leave them out with --compare"
        )
    before = analyze(traces[0], analysis)
    after = analyze(traces[1], analysis)
    specification = select_changes(before, after, choice)
    show_plugin_problems(after)
    return specification


def _write(reproduction: Reproduction, output: Path) -> None:
    """Write the script, and print what it does not run."""
    from tracelens_ext.reproduce.script import refusal_sentences

    for sentence in refusal_sentences(reproduction.refusals):
        tell(sentence)
    if not reproduction.count:
        raise UsageError("none of the chosen operations can be reproduced")
    write_text(output, reproduction.script)
    tell_written([output])


COMMAND = Command(
    name="reproduce",
    summary="Write a script that runs operations of a trace in isolation.",
    function=reproduce,
    group="Diagnose",
    examples=(
        "reproduce trace.json.gz -o bench.py",
        "reproduce trace.json.gz --row 3 -o bench.py",
        "reproduce --compare before.json.gz after.json.gz -o bench.py",
    ),
)
