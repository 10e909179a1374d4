"""Which engines and models there are maps for."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from tracelens_ext.errors import UsageError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence

    from tracelens_ext.chart.specification import ChartInput


def known_models(
    maps: Sequence[str | os.PathLike[str]] = (), passed_over: list[str] | None = None
) -> dict[str, list[str]]:
    """The models of each engine, both by name: ours, plugins', and the user's.

    Args:
        maps: files and folders of engine/model maps, besides the user's configuration folder.
        passed_over: gets a line for each file in those folders that is no such map.

    Raises:
        RuleError: a place in `maps` does not exist, or is a file that is no such map.
    """
    from tracelens_ext.categorize.choice import user_maps
    from tracelens_ext.categorize.maps import offered_packs
    from tracelens_ext.hooks import default_registry

    registry = default_registry()
    of_user = user_maps(maps, registry, [] if passed_over is None else passed_over)
    packs = [offered.item for offered in [*offered_packs(registry), *of_user]]
    models: dict[str, set[str]] = {}
    for pack in packs:
        engine, colon, model = pack.name.partition(":")
        if pack.selectable and colon:
            models.setdefault(engine, set()).add(model)
    return {engine: sorted(models[engine]) for engine in sorted(models)}


def check_models(
    inputs: Iterable[ChartInput],
    known: Mapping[str, Sequence[str]],
    passed_over: Sequence[str] = (),
) -> None:
    """Check that there is a map for each input.

    Raises:
        UsageError: there is none; the message lists those that there are.
    """
    from tracelens_ext.categorize.choice import not_maps

    add = f"add yours with --maps{not_maps(passed_over)}"
    for given in inputs:
        if given.engine not in known:
            raise UsageError(
                f"no engine is called {given.engine!r}; {_nearest(given.engine, known)}"
                f"known engines: {', '.join(known) or 'none'}; {add}"
            )
        models = known[given.engine]
        if given.model not in models:
            raise UsageError(
                f"{given.engine} has no model called {given.model!r};"
                f" {_nearest(given.model, models)}known models: {', '.join(models)};"
                f" {add}"
            )


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}? " if near else ""
