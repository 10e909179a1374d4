"""A process group, of which environment variables tell."""

import os


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return "STAND_IN_WORLD_SIZE" in os.environ


def get_rank() -> int:
    return int(os.environ.get("RANK", "0"))


def get_world_size() -> int:
    return int(os.environ["STAND_IN_WORLD_SIZE"])
