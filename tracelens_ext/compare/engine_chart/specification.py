"""Parses the inputs of a chart, which a user writes as `FILE,ENGINE,MODEL,SECONDS`."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tracelens_ext.errors import UsageError
from tracelens_ext.text import encodable
from tracelens_ext.trace_files import trace_suffixes

NS_PER_S: Final = 1_000_000_000
#: Larger run times, of more than thirty years, must be mistakes.
_MAX_SECONDS: Final = 1e9
_FORM: Final = "FILE,ENGINE,MODEL,SECONDS"
_EXAMPLE: Final = "run1.nsys-rep,vllm,llama,306"
_PARTS: Final = 4
_MIN_SIMILARITY: Final = 0.6


@dataclass(frozen=True)
class ChartInput:
    """An input of a chart: a trace, the map that categorizes it, and its run time."""

    path: Path  #: the file of the trace
    #: the serving engine, which is the first part of the map's name; empty if it was not given
    engine: str = ""
    model: str = ""  #: the model, which is the second part of the map's name
    #: the run time without profiling; 0 to take it from the trace
    elapsed_ns: int = 0

    @property
    def map_name(self) -> str:
        """The name of the engine/model map."""
        return f"{self.engine}:{self.model}"

    def label(self, position: int) -> str:
        """Return the name of the input's bar. It contains the position, so it is unique."""
        name = self.path.name
        suffixes = sorted(trace_suffixes(), key=len, reverse=True) + [".csv"]
        for suffix in suffixes:
            if name.lower().endswith(suffix):
                name = name[: len(name) - len(suffix)]
                break
        parts = [self.model, self.engine, name, str(position)]
        return encodable("_".join(part for part in parts if part))


def are_bare_files(texts: Sequence[str]) -> bool:
    """Tell whether every text is the path of an existing file, without further parts."""
    return bool(texts) and all(text and Path(text).is_file() for text in texts)


def parse_inputs(texts: Iterable[str], *, bare_files: bool = False) -> list[ChartInput]:
    """Parse the inputs of a chart.

    Args:
        texts: the inputs as the user writes them.
        bare_files: True to accept a file without engine, model and seconds.

    Raises:
        UsageError: an input is invalid.
    """
    return [_parse_input(text, bare_files=bare_files) for text in texts]


def _parse_input(text: str, *, bare_files: bool) -> ChartInput:
    """Parse one input."""
    # The text is split from the right because the name of the file may contain commas.
    parts = text.rsplit(",", 3)
    is_complete = len(parts) == _PARTS
    if bare_files and not (is_complete and _number(parts[3]) is not None):
        if not text:
            raise UsageError("an input is empty; give a file")
        return ChartInput(Path(text))
    if not is_complete:
        raise UsageError(
            f"{text!r}: expected {_FORM}, such as {_EXAMPLE}; SECONDS is the run time "
            "without profiling, or 0 to use the time in the trace"
        )
    file = parts[0]
    engine, model, seconds = (part.strip() for part in parts[1:])
    for label, value in (("FILE", file), ("ENGINE", engine), ("MODEL", model)):
        if not value:
            raise UsageError(
                f"{text!r}: {label} is empty; expected {_FORM}, such as {_EXAMPLE}"
            )
    elapsed_s = _number(seconds)
    # The comparison is false for NaN, too.
    is_valid = elapsed_s is not None and 0 <= elapsed_s <= _MAX_SECONDS
    if elapsed_s is None or not is_valid:
        raise UsageError(
            f"{text!r}: {seconds!r} is not a number of seconds; give the run time "
            "without profiling, such as 306 or 12.5, or 0 to use the time in the trace"
        )
    return ChartInput(
        path=Path(file), engine=engine, model=model, elapsed_ns=_whole_ns(elapsed_s)
    )


def _whole_ns(seconds: float) -> int:
    """Return a time in whole ns. Times between 0 and 1 ns become 1, because 0 means not given."""
    ns = seconds * NS_PER_S
    return math.ceil(ns) if ns < 1 else round(ns)


def _number(text: str) -> float | None:
    """Return a text as a number; None if it is not a number."""
    try:
        return float(text)
    except ValueError:
        return None


def known_models(
    maps: Sequence[str | os.PathLike[str]] = (), passed_over: list[str] | None = None
) -> dict[str, list[str]]:
    """Return the names of each engine's models with a built-in map, a plugin's or the user's.

    Args:
        maps: folders of the user's maps.
        passed_over: receives a line for each file in `maps` that is not a map.
    """
    from tracelens_ext.categorize.choices import offered_packs, user_maps
    from tracelens_ext.hooks import default_registry

    registry = default_registry()
    ignored = [] if passed_over is None else passed_over
    packs = list(offered_packs(registry)) + user_maps(maps, registry, ignored)
    names = {offered.item.name for offered in packs if offered.item.selectable}
    models_of_engine: dict[str, list[str]] = {}
    for engine, separator, model in sorted(name.partition(":") for name in names):
        if separator:
            models_of_engine.setdefault(engine, []).append(model)
    return models_of_engine


def check_models(
    inputs: Iterable[ChartInput],
    known: Mapping[str, Sequence[str]],
    passed_over: Sequence[str] = (),
) -> None:
    """Check that there is a map for each input.

    Args:
        inputs: the inputs of the chart.
        known: the models of each engine, as `known_models` returns them.
        passed_over: a line for each file that is not a map, for the error message.

    Raises:
        UsageError: an input has no map.
    """
    for given in inputs:
        if given.engine not in known:
            problem = f"there is no engine called {given.engine!r}"
            raise _unknown(
                problem=problem,
                name=given.engine,
                kind="engines",
                known_names=known,
                passed_over=passed_over,
            )
        models = known[given.engine]
        if given.model not in models:
            problem = f"{given.engine} has no model called {given.model!r}"
            raise _unknown(
                problem=problem,
                name=given.model,
                kind="models",
                known_names=models,
                passed_over=passed_over,
            )


def _unknown(
    problem: str,
    name: str,
    kind: str,
    known_names: Iterable[str],
    passed_over: Sequence[str],
) -> UsageError:
    """Return the error about an unknown engine or model, with the most similar known name."""
    from tracelens_ext.categorize.maps import not_maps

    names = list(known_names)
    question = ""
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=_MIN_SIMILARITY)
    if nearest:
        question = f"did you mean {nearest[0]!r}? "
    listed = ", ".join(names) or "none"
    remedy = f"add yours with --maps{not_maps(passed_over)}"
    return UsageError(f"{problem}; {question}known {kind}: {listed}; {remedy}")
