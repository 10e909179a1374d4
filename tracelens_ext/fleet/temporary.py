"""Where a worker puts what it needs for a while."""

from __future__ import annotations


def worker_folder() -> str | None:
    """The folder of this Dask worker, which goes with it, even when it is killed; None without.

    What is in it need not be removed for the machine's sake: whoever started the worker does so.
    """
    from distributed import get_worker

    try:
        return str(get_worker().local_directory)
    except ValueError:
        return None
