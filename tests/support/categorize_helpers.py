"""Plugins made on the spot, for the tests of categorization."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tracelens_ext.hooks import PluginRegistry


@dataclass
class FakeEntryPoint:
    """An entry point that loads an object at hand, or fails to."""

    name: str
    module: object
    own: bool = False
    value: str = "made.in.a.test"

    @property
    def dist(self) -> Distribution | None:
        """This distribution's for `own`, else none."""
        return _OwnDistribution(Path("tracelens_ext.dist-info")) if self.own else None

    def load(self) -> Any:
        """The object, or the error to raise instead."""
        if isinstance(self.module, BaseException):
            raise self.module
        return self.module


class _OwnDistribution(PathDistribution):
    name = "tracelens-ext"
    version = "0"


def plugin(**hooks: Any) -> SimpleNamespace:
    """A plugin with these hooks, each already marked with `hookimpl`."""
    return SimpleNamespace(**hooks)


def registry(**plugins: object) -> PluginRegistry:
    """A registry of other people's plugins, and nothing else."""
    return PluginRegistry(
        FakeEntryPoint(name, module) for name, module in plugins.items()
    )


def write_pack(
    folder: Path, name: str, *rules: tuple[str, str], head: str = ""
) -> Path:
    """A rule pack file with a rule for each (category, pattern)."""
    text = head + "".join(
        f"[[rule]]\ncategory = '{category}'\npattern = '{pattern}'\n"
        for category, pattern in rules
    )
    path = folder / f"{name}.toml"
    path.write_text(text, encoding="utf-8")
    return path
