"""What is to be charted, as a user writes it: `FILE,ENGINE,MODEL,SECONDS`."""

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
_MOST_SECONDS: Final = 1e9  # thirty years; what is more is a slip of the pen
_FORM: Final = "FILE,ENGINE,MODEL,SECONDS"
_EXAMPLE: Final = "run1.nsys-rep,vllm,llama,306"


@dataclass(frozen=True)
class ChartInput:
    """A trace and what to make of it, as a user writes it: `FILE,ENGINE,MODEL,SECONDS`."""

    path: Path  #: the file
    #: the serving engine, the first half of a map's name; empty when none was given
    engine: str = ""
    model: str = ""  #: the model, the second half
    elapsed_ns: int = 0  #: how long the run took without profiling; 0 to take it from the trace

    @property
    def map_name(self) -> str:
        """What the engine/model map is called."""
        return f"{self.engine}:{self.model}"

    def label(self, position: int) -> str:
        """What the bar of this input is called: unlike all others, as the position is in it."""
        name = self.path.name
        suffixes = (*sorted(trace_suffixes(), key=len, reverse=True), ".csv")
        suffix = next((end for end in suffixes if name.lower().endswith(end)), "")
        parts = [self.model, self.engine, name[: len(name) - len(suffix)], str(position)]
        return encodable("_".join(part for part in parts if part))


def parse_inputs(texts: Iterable[str], *, bare_files: bool = False) -> list[ChartInput]:
    """Read the specifications of a chart's inputs; `bare_files`: a file alone will do."""
    return [_parsed(text, bare_files=bare_files) for text in texts]


def _parsed(text: str, *, bare_files: bool) -> ChartInput:
    # From the right: the name of a file may hold commas, the other three may not.
    parts = text.rsplit(",", 3)
    if bare_files and (len(parts) < 4 or _number(parts[3]) is None):
        if not text:
            raise UsageError("an input is empty; name a file")
        return ChartInput(Path(text))
    if len(parts) < 4:
        raise UsageError(
            f"{text!r}: expected {_FORM}, such as {_EXAMPLE}; SECONDS is how long the run takes"
            " without profiling, 0 for the time in the trace"
        )
    file, engine, model, seconds = parts[0], *(part.strip() for part in parts[1:])
    for what, value in (("FILE", file), ("ENGINE", engine), ("MODEL", model)):
        if not value:
            raise UsageError(f"{text!r}: {what} is empty; expected {_FORM}, such as {_EXAMPLE}")
    elapsed = _number(seconds)
    if elapsed is None or not 0 <= elapsed <= _MOST_SECONDS:  # nor is NaN
        raise UsageError(
            f"{text!r}: {seconds!r} is no number of seconds; give how long the run takes without"
            " profiling, such as 306 or 12.5, or 0 for the time in the trace"
        )
    elapsed *= NS_PER_S
    ns = math.ceil(elapsed) if elapsed < 1 else round(elapsed)
    return ChartInput(Path(file), engine, model, ns)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def known_models(
    maps: Sequence[str | os.PathLike[str]] = (), passed_over: list[str] | None = None
) -> dict[str, list[str]]:
    """The models of each engine, both by name: ours, plugins', and the user's.

    `passed_over` gets a line for each file among `maps` that is no map.
    """
    from tracelens_ext.categorize.choices import offered_packs, user_maps
    from tracelens_ext.hooks import default_registry

    registry = default_registry()
    of_user = user_maps(maps, registry, [] if passed_over is None else passed_over)
    packs = [offered.item for offered in (*offered_packs(registry), *of_user)]
    names = sorted({tuple(pack.name.split(":", 1)) for pack in packs if pack.selectable})
    both = [name for name in names if len(name) == 2]
    return {engine: [model for e, model in both if e == engine] for engine, _ in both}


def check_models(
    inputs: Iterable[ChartInput],
    known: Mapping[str, Sequence[str]],
    passed_over: Sequence[str] = (),
) -> None:
    """Check that there is a map for each input."""
    from tracelens_ext.categorize.maps import not_maps

    for given in inputs:
        models = known.get(given.engine, ())
        for name, there, none, kind in (
            (given.engine, known, "no engine is called", "engines"),
            (given.model, models, f"{given.engine} has no model called", "models"),
        ):
            if name not in there:
                near = difflib.get_close_matches(name, list(there), n=1, cutoff=0.6)
                meant = f"did you mean {near[0]!r}? " if near else ""
                raise UsageError(
                    f"{none} {name!r}; {meant}known {kind}: {', '.join(there) or 'none'};"
                    f" add yours with --maps{not_maps(passed_over)}"
                )
