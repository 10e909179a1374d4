"""What took time to find out about a trace, as arrays that can be kept beside it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from tracelens_ext.cache.store import TraceCache
    from tracelens_ext.trace import Trace

Arrays = dict[str, "npt.NDArray[Any]"]


class Keep(Protocol):
    """Gives what `find` finds out, from where it was kept if it was found out before."""

    def __call__(
        self, part: str, find: Callable[[], Arrays], *, depends_on: Sequence[npt.NDArray[Any]] = ()
    ) -> Arrays:
        """Give the arrays.

        Args:
            part: a name for them: small letters, digits, `-`, `_`.
            find: makes them, of the trace and its tree, and nothing else but `depends_on`;
                one-dimensional, of whole numbers or truth values.
            depends_on: what else they are made from.
        """
        ...


def find_anew(
    part: str, find: Callable[[], Arrays], *, depends_on: Sequence[npt.NDArray[Any]] = ()
) -> Arrays:
    """Keep nothing."""
    del part, depends_on
    return find()


def keep_in(cache: TraceCache, trace: Trace, *, suffix: str = "") -> Keep:
    """Keep things beside a trace in the cache that it was read with.

    Args:
        cache: the cache.
        trace: a trace; nothing is kept beside one that the cache does not hold.
        suffix: ends the names of all parts; tells trees of one trace apart.
    """
    from tracelens_ext.cache.identity import analysis_version

    if not cache.holds(trace):
        return find_anew

    def keep(
        part: str, find: Callable[[], Arrays], *, depends_on: Sequence[npt.NDArray[Any]] = ()
    ) -> Arrays:
        digest = hashlib.blake2b(analysis_version().encode(), digest_size=16)
        for array in depends_on:
            digest.update(f"{array.dtype.str} {array.shape} ".encode())
            digest.update(np.ascontiguousarray(array).view(np.uint8).data)
        made_from = digest.hexdigest()
        kept = cache.arrays(trace, part + suffix, made_from)
        if kept is None:
            kept = find()
            cache.keep_arrays(trace, part + suffix, kept, made_from)
        return kept

    return keep
