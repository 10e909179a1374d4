"""The traces that the arguments of a command name: files, folders, and patterns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tracelens_ext.errors import TraceError, TraceNotFoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def find_traces(arguments: Sequence[str]) -> tuple[list[Path], list[TraceError]]:
    """The traces that arguments name, in that order.

    A folder stands for the traces directly in it (of a report of Nsight Systems and its export the
    export; no databases of other programs), a pattern (`run_*/rank[0-3].json.gz`, `**` for
    any depth) for the files that match it; both without what this program wrote itself. An
    argument that is a file's name is that file, whatever characters it has.

    Returns:
        The files (one that does not exist too: its reader will say so), and what is wrong with
        the arguments that name nothing.
    """
    from tracelens_ext.trace_files import is_pattern

    found: list[Path] = []
    problems: list[TraceError] = []
    for argument in arguments:
        if not argument:
            raise UsageError("a trace's name is empty; name a file, a folder or a pattern")
        path = Path(argument)
        try:
            if path.is_dir():
                found += _traces_in(path)
            elif is_pattern(argument):
                found += _matching(argument)
            else:
                found.append(path)
        except TraceError as error:
            problems.append(error)
        except (OSError, ValueError) as error:
            problems.append(_unusable(path, error))
    return found, problems


def without_repetitions(paths: Iterable[Path]) -> list[Path]:
    """Each file once, by the first name given for it."""
    of_file: dict[Path, Path] = {}
    for path in paths:
        try:
            same = path.resolve()
        except (OSError, RuntimeError):  # links in a circle, say: its reader will tell
            same = path
        of_file.setdefault(same, path)
    return list(of_file.values())


def check_files(paths: Iterable[Path]) -> None:
    """Check that all files are there, before the first is read for minutes.

    Raises:
        TraceNotFoundError: one is not.
    """
    for path in paths:
        try:
            absent = not path.exists()
        except (OSError, ValueError):
            continue  # the reader says what is wrong with such a name
        if absent:
            raise TraceNotFoundError(path, "no such file", "check the path")


def _traces_in(folder: Path) -> list[Path]:
    from tracelens_ext.trace_files import suffixes_text, traces_in

    if not (traces := traces_in(folder)):
        raise TraceNotFoundError(
            folder,
            f"holds no {suffixes_text()} file",
            "name the folder that does, or a pattern such as 'FOLDER/**/*.json.gz'",
        )
    return traces


def _unusable(path: Path, error: OSError | ValueError) -> TraceNotFoundError:
    reason = getattr(error, "strerror", None) or error
    return TraceNotFoundError(
        path, f"cannot be opened ({reason})", "check the path and its permissions"
    )


def _matching(pattern: str) -> list[Path]:
    from tracelens_ext.trace_files import traces_matching

    if not (traces := traces_matching(pattern)):
        raise TraceNotFoundError(pattern, "no file matches", "check the pattern")
    return traces
