"""What is installed: every package in the wheel, the entry points, quick imports."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import tracelens_ext

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_every_data_file_is_listed() -> None:
    data = PROJECT["tool"]["setuptools"]["package-data"]
    folders = {
        "tracelens_ext_categorizers": "categorizers",
        "tracelens_ext_plugins": "plugins",
    }
    compiled = set(ROOT.glob("tracelens_ext/readers/*/_native.c"))
    found = ROOT.glob("tracelens_ext/**/__init__.py")
    packages = [
        *(".".join(path.parent.relative_to(ROOT).parts) for path in sorted(found)),
        *folders,
    ]
    for package in packages:
        folder = ROOT / folders.get(package, package.replace(".", "/"))
        patterns = data.get(package, [])
        listed = {path for pattern in patterns for path in folder.glob(pattern)}
        files = {path for path in folder.iterdir() if path.is_file()}
        listed |= compiled
        stray = {
            p.name for p in files - listed if p.suffix not in {".py", ".pyc", ".so"}
        }
        assert not stray, f"{package}: not in package-data: {stray}"


def test_the_built_ins_are_an_entry_point_like_any_other() -> None:
    names = {entry.name: entry.value for entry in entry_points(group="tracelens_ext")}
    assert names["builtin"] == "tracelens_ext_categorizers"


def test_version_is_the_same_everywhere() -> None:
    assert PROJECT["project"]["version"] == tracelens_ext.__version__


@pytest.mark.process
def test_importing_and_help_load_nothing_heavy() -> None:
    program = (
        "import sys, tracelens_ext, tracelens_ext.cli\n"
        "code = tracelens_ext.cli.run(['report', '--help'])\n"
        "heavy = {'pandas', 'xlsxwriter', 'plotly', 'jinja2', 'numpy'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {heavy}, exit code {code}' if heavy or code else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_public_names_exist() -> None:
    for name in tracelens_ext.__all__:
        assert getattr(tracelens_ext, name) is not None
    assert set(tracelens_ext.__all__) <= set(dir(tracelens_ext))


@pytest.mark.process
def test_python_m_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tracelens_ext", "--version"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith(f"tracelens-ext {tracelens_ext.__version__}, ")
