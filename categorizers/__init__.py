"""The built-in rule packs: one TOML file a domain, registered as any plugin's would be."""

from __future__ import annotations

from pathlib import Path

from tracelens_ext.hooks import hookimpl


@hookimpl
def tracelens_rule_packs() -> list[Path]:
    """Every rule pack in this folder."""
    return sorted(Path(__file__).parent.glob("*.toml"))
