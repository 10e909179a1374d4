"""Workers of a data loader."""

import os


def get_worker_info() -> object:
    return os.environ.get("STAND_IN_WORKER")
