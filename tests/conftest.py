"""What all tests share: property tests that try the same examples every time."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

os.environ["TRACELENS_EXT_NO_CACHE"] = "1"  # no test leaves traces in the user's cache

settings.register_profile(
    "same every time",
    derandomize=True,
    deadline=None,
    max_examples=80,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("same every time")
