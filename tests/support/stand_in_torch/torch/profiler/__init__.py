"""The profiler: it must be used by one thread, and crashes as PyTorch's does otherwise."""

from __future__ import annotations

import json
import os
import sys
import threading
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.autograd import profiler as recorded

ProfilerActivity = SimpleNamespace(CPU="cpu", CUDA="cuda")


def supported_activities() -> set[str]:
    return {ProfilerActivity.CPU}


class _KinetoProfile:
    def __init__(self, **options: Any) -> None:
        self.options = options
        self.metadata: dict[str, Any] = {}
        self.events: list[dict[str, Any]] = []
        self.thread = 0

    def prepare_trace(self) -> None:
        self.say("prepared")
        warnings.warn("the profiler warns of itself", stacklevel=2)
        if os.environ.get("STAND_IN_PROFILER_FAILS"):
            raise RuntimeError("no profiler today")
        self.thread = threading.get_ident()

    def say(self, what: str) -> None:
        """Write to standard error, as Kineto does unless its level is high."""
        if os.environ.get("KINETO_LOG_LEVEL") != "99":
            sys.stderr.write(f"kineto {what}\n")

    def start_trace(self) -> None:
        self.check_thread()
        torch._C._autograd.enabled_thread = self.thread
        recorded.events = self.events

    def stop_trace(self) -> None:
        self.check_thread()
        for running in recorded.record_function.running:
            running.end()
        recorded.record_function.running.clear()
        torch._C._autograd.enabled_thread = None
        recorded.events = None

    def check_thread(self) -> None:
        if self.thread != threading.get_ident():
            os.abort()

    def add_metadata_json(self, key: str, value: str) -> None:
        self.metadata[key] = json.loads(value)

    def export_chrome_trace(self, path: str) -> None:
        options = {key: str(value) for key, value in self.options.items()}
        members = {"schemaVersion": 1, "options": options, **self.metadata}
        members["traceEvents"] = self.events
        Path(path).write_text(json.dumps(members), "utf-8")


class profile(_KinetoProfile):  # noqa: N801
    def __enter__(self) -> profile:
        self.prepare_trace()
        self.start_trace()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop_trace()
