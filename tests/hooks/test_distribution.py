"""Plugins as distributions: the example and the skeleton, built, installed, and at work."""

from __future__ import annotations

import csv
import importlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pytest

from tracelens_ext.categorize import check_pack, load_pack
from tracelens_ext.categorize.scaffold import write_plugin
from tracelens_ext.errors import OutputError, UsageError

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "tests" / "example_plugin"
KERNELS = (
    "void example_company::fused_bias_gelu<float>(float*)",
    "void my_company::fused_bias_gelu<float>(float*)",
    "nvjet_tst_320x128_64x3_1x2_h_bz_coopB_TNT",
)


@pytest.fixture
def example_kernels(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLE / "src"))
    return importlib.import_module("example_kernels")


def test_every_rule_of_the_example_takes_its_examples(
    example_kernels: ModuleType,
) -> None:
    assert (
        check_pack(
            load_pack(Path(str(example_kernels.__file__)).with_name("rules.toml"))
        )
        == []
    )


def test_the_example_categorises_its_own_operations_only(
    example_kernels: ModuleType,
) -> None:
    table = pd.DataFrame(
        {
            "kernel_name": ["k", "k", "k"],
            "cpu_op": ["example_company::op", "aten::mm", None],
        }
    )
    answer = example_kernels.tracelens_categorize_kernels(table)
    assert answer.tolist()[0] == "Example Other"
    assert answer.isna().tolist() == [False, True, True]


def test_the_examples_format_becomes_kernels(
    example_kernels: ModuleType, tmp_path: Path
) -> None:
    path = tmp_path / "list.txt"
    path.write_text("# kernel list\n1.5,2,void f<a, b>(int)\n", encoding="utf-8")
    (reader,) = example_kernels.tracelens_readers()
    assert reader.recognises(path, path.read_bytes())
    assert not reader.recognises(path, b"{")
    (event,) = reader.read(path)["traceEvents"]
    assert (event["ts"], event["dur"], event["name"]) == (1.5, 2.0, "void f<a, b>(int)")


@pytest.mark.process
def test_the_skeletons_own_tests_pass(tmp_path: Path) -> None:
    files = write_plugin("my-company-kernels", tmp_path)
    folder = tmp_path / "my-company-kernels"
    assert sorted(path for path in folder.rglob("*") if path.is_file()) == sorted(files)
    # What an installer would leave, without one: the package and its entry point on the path.
    info = tmp_path / "site" / "my_company_kernels-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: my-company-kernels\nVersion: 0.1.0\n",
        encoding="utf-8",
    )
    (info / "entry_points.txt").write_text(
        "[tracelens_ext]\nmy-company-kernels = my_company_kernels\n", encoding="utf-8"
    )
    paths = os.pathsep.join([str(folder / "src"), str(info.parent)])
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 passed" in ran.stdout, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    "name", ["", "1abc", "a b", "a/b", "../a", "class", "tracelens-ext", "a-"]
)
def test_names_that_no_distribution_can_have(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be the name of a plugin"):
        write_plugin(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(OutputError, match="already exists"):
        write_plugin("mine", tmp_path)
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(OutputError, match="cannot be written"):
        write_plugin("mine", tmp_path / "file")


def command(*arguments: str | Path, cwd: Path) -> str:
    """Run a command that must succeed; its standard output."""
    environment = {
        k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
    ran = subprocess.run(
        [str(argument) for argument in arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, f"{arguments}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with three wheels in it: ours, the example's, a skeleton's.

    What they require is borrowed from the environment of the tests, so no package index is asked.
    """
    place = tmp_path_factory.mktemp("installed")
    sources = place / "project"
    for folder in ("tracelens_ext", "categorizers", "plugins"):
        shutil.copytree(
            ROOT / folder,
            sources / folder,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    for file in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, sources)
    shutil.copytree(EXAMPLE, place / "example")
    write_plugin("my-company-kernels", place)
    wheels = place / "wheels"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    build = (*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", wheels)
    command(*build, sources, place / "example", place / "my-company-kernels", cwd=place)
    env = place / "env"
    venv.create(env)
    where = {"base": str(env), "platbase": str(env)}
    borrowed = Path(sysconfig.get_path("purelib", "venv", where)) / "borrowed.pth"
    borrowed.write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    python = Path(sysconfig.get_path("scripts", "venv", where)) / "python"
    install = (*pip, "--python", python, "install", "-q", "--no-deps")
    command(*install, *sorted(wheels.glob("*.whl")), cwd=place)
    return python.parent


@pytest.mark.process
def test_installed_plugins_show_in_a_report(installed: Path, tmp_path: Path) -> None:
    events = [
        {
            "ph": "X",
            "cat": "kernel",
            "name": name,
            "pid": 0,
            "tid": 7,
            "ts": 10 * at,
            "dur": 5,
            "args": {"device": 0, "stream": 7, "correlation": at},
        }
        for at, name in enumerate(KERNELS, start=1)
    ]
    (tmp_path / "trace.json").write_text(
        json.dumps({"traceEvents": events}), encoding="utf-8"
    )
    program = installed / "tracelens-ext"
    command(
        program,
        "report",
        "trace.json",
        "-o",
        "r.xlsx",
        "--csv-dir",
        "csv",
        cwd=tmp_path,
    )
    with (tmp_path / "csv" / "kernels_by_category.csv").open(encoding="utf-8") as file:
        found = {
            row["kernel_name"]: row["kernel_category"] for row in csv.DictReader(file)
        }
    assert found == dict(
        zip(KERNELS, ("Example Fused Op", "My Fused Op", "GEMM"), strict=True)
    )


@pytest.mark.process
def test_installed_plugins_are_listed(installed: Path, tmp_path: Path) -> None:
    listing = command(installed / "tracelens-ext", "plugins", cwd=tmp_path)
    assert "example-kernels  ok  example-kernels 0.1.0" in listing
    assert "my-company-kernels  ok  my-company-kernels 0.1.0" in listing
    assert "FAILED" not in listing
    answer = command(installed / "tracelens-ext", "explain", KERNELS[1], cwd=tmp_path)
    assert answer.startswith("category  My Fused Op\n")


@pytest.mark.process
def test_maps_and_packs_are_in_the_wheel(installed: Path, tmp_path: Path) -> None:
    for name, category in (
        ("jax", "GEMM"),
        ("vllm:gpt-oss", "gemm"),
        ("builtin", "GEMM"),
    ):
        answer = command(
            installed / "tracelens-ext",
            "explain",
            KERNELS[2],
            "--categorizer",
            name,
            cwd=tmp_path,
        )
        assert answer.startswith(f"category  {category}\n")
