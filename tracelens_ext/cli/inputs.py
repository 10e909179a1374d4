"""The traces that the arguments of a command name: files, folders, and patterns."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens_ext.errors import TraceError, TraceNotFoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: What the name of a trace ends in.
TRACE_SUFFIXES = (".json", ".json.gz")


def find_traces(arguments: Sequence[str]) -> tuple[list[Path], list[TraceError]]:
    """The traces that arguments name, in that order.

    A folder stands for the traces directly in it, a pattern (`run_*/rank[0-3].json.gz`, `**` for
    any depth) for the files that match it; both without what this program wrote itself. An
    argument that is a file's name is that file, whatever characters it has.

    Args:
        arguments: as the user gave them.

    Returns:
        The files (one that does not exist too: its reader will say so), and what is wrong with
        the arguments that name nothing.
    """
    found: list[Path] = []
    problems: list[TraceError] = []
    for argument in arguments:
        if not argument:
            raise UsageError("a trace's name is empty; name a file, a folder or a pattern")
        path = Path(argument)
        try:
            if path.is_dir():
                found += _traces_in(path)
            elif _is_pattern(argument) and not path.exists():
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


def _is_pattern(argument: str) -> bool:
    return glob.has_magic(argument)


def _traces_in(folder: Path) -> list[Path]:
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise _unusable(folder, error) from None
    traces = _not_ours(path for path in entries if path.name.lower().endswith(TRACE_SUFFIXES))
    if not traces:
        raise TraceNotFoundError(
            folder,
            "holds no .json or .json.gz file",
            "name the folder that does, or a pattern such as 'FOLDER/**/*.json.gz'",
        )
    return traces


def _unusable(path: Path, error: OSError | ValueError) -> TraceNotFoundError:
    reason = getattr(error, "strerror", None) or error
    return TraceNotFoundError(
        path, f"cannot be opened ({reason})", "check the path and its permissions"
    )


def _matching(pattern: str) -> list[Path]:
    traces = _not_ours(Path(name) for name in sorted(glob.glob(pattern, recursive=True)))  # noqa: PTH207  # absolute ones too
    if not traces:
        raise TraceNotFoundError(pattern, "no file matches", "check the pattern")
    return traces


def _not_ours(paths: Iterable[Path]) -> list[Path]:
    """The regular files among these that are no reports of this program."""
    from tracelens_ext.report.manifest import made_here

    return [path for path in paths if path.is_file() and not made_here(path)]
