"""The folder for the temporary files of a worker."""

from __future__ import annotations


def worker_folder() -> str | None:
    """The folder of this Dask worker, which goes with it, even if it is killed; None without Dask.

    Files in it need not be removed: the process that started the worker removes the folder.
    """
    from distributed import get_worker

    try:
        return str(get_worker().local_directory)
    except ValueError:
        return None
