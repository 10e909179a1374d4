"""Inputs that are no files to keep: folders, pipes, files that grow, that are huge or forbidden."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.make_trace import TraceMaker, cuda_graph_example
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.cli import run
from tracelens_ext.readers import read_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.make_trace import Document

NOBODY = 65534


def _line(
    arguments: list[str], capfd: pytest.CaptureFixture[str], code: int = 1
) -> str:
    assert run(arguments) == code
    printed, said = capfd.readouterr()
    assert printed == ""
    assert said.startswith("tracelens-ext: ")
    assert said.count("\n") == 1, said
    assert "internal error" not in said
    return said


def _written(document: Document, path: Path) -> Path:
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def test_a_folder(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert "is a folder; give one trace file in it" in _line(
        ["kernels", str(tmp_path)], capfd
    )
    assert "contains no" in _line(["report", str(tmp_path)], capfd)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("command", ["report", "kernels", "gaps", "tree", "iterations"])
def test_a_pipe(
    command: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "trace.json")
    said = _line([command, str(tmp_path / "trace.json")], capfd)
    assert "is not a regular file; copy it to a file first" in said


@pytest.mark.skipif(
    not Path("/dev/zero").exists(), reason="this system has no /dev/zero"
)
def test_a_device(capfd: pytest.CaptureFixture[str]) -> None:
    assert "is not a regular file" in _line(["kernels", "/dev/zero"], capfd)


@pytest.mark.skipif(
    not hasattr(os, "geteuid"), reason="this system has no such permissions"
)
def test_a_file_without_read_permission(capfd: pytest.CaptureFixture[str]) -> None:
    """As nobody, where these tests are run by root, who may read all."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        trace = _written(cuda_graph_example(), Path(name) / "trace.json")
        assert run(["kernels", str(trace)]) == 0  # all that is imported is imported now
        assert run(["kernels", f"{trace}.missing"]) == 1
        capfd.readouterr()
        trace.chmod(0o000)
        root = os.geteuid() == 0
        if root:
            os.seteuid(NOBODY)
        try:
            said = _line(["kernels", str(trace)], capfd)
        finally:
            if root:
                os.seteuid(0)
    assert (
        "cannot be opened (Permission denied); check the path and its permissions"
        in said
    )


@pytest.mark.parametrize("whole", [True, False])
def test_a_file_that_grows_while_it_is_read(
    whole: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """It is read as it was when it was opened; one that never ends is not waited for."""
    trace = _written(cuda_graph_example(), tmp_path / "trace.json")
    text = trace.read_bytes()
    if not whole:
        text = text[: text.index(b'"nvjet')]
        trace.write_bytes(text)

    @contextmanager
    def growing(
        _labels: object,
    ) -> Iterator[Callable[[int, int | None, int | None], None]]:
        def grow(_number: int, _done: int | None, _size: int | None) -> None:
            with trace.open("ab") as file:
                file.write(b' {"traceEvents": [')

        yield grow

    monkeypatch.setattr("tracelens_ext.cli.load.several_progress", growing)
    code = run(["kernels", str(trace), "--json"])
    printed, said = capfd.readouterr()
    assert trace.stat().st_size > len(text)
    if whole:
        assert code == 0
        assert len(json.loads(printed)["tables"]["kernel_statistics"]) == 3
    else:
        assert code == 1
        assert "the JSON ends prematurely, after 4 events" in said
        assert said.count("\n") == 1


@pytest.mark.slow
def test_a_graph_launch_with_100_000_kernels(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.op("aten::run_graph", 0, 100)
    maker.call("cudaGraphLaunch", 10, 20, correlation=42)
    for i in range(100_000):
        maker.kernel(f"kernel_{i % 100}", 50 + 2 * i, 1, correlation=42)
    path = _written(maker.document(), tmp_path / "trace.json")
    analyzer = TreePerfAnalyzer(path, use_kernel_name_categories=True)
    table = analyzer.get_df_kernel_summary()
    assert int(table["count"].sum()) == 100_000
    assert set(table["cpu_op"]) == {"graph"}
    assert run(["report", str(path), "-o", str(tmp_path / "r.json"), "--quiet"]) == 0


def _nested(depth: int) -> Document:
    maker = TraceMaker()
    for i in range(depth):
        maker.op(f"op{i}", i, 4 * depth - 2 * i, external_id=i + 1)
    maker.launched("kernel", 5 * depth, 7, correlation=1, at=depth + 1)
    return maker.document()


def test_3000_nested_calls(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = _written(_nested(3000), tmp_path / "trace.json")
    tree = TreePerfAnalyzer(path).tree
    (kernel,) = (n for n, name in enumerate(tree.trace.names) if name == "kernel")
    (row,) = (tree.trace.name == kernel).nonzero()[0].tolist()
    assert len(list(tree.ancestors(row))) == 3001, (
        "the launch and the 3,000 calls around it"
    )
    assert run(["report", str(path), "-o", str(tmp_path / "r.json"), "--quiet"]) == 0
    assert run(["tree", str(path)]) == 0
    printed, said = capfd.readouterr()
    assert "kernel" in printed
    assert said == ""


@pytest.mark.parametrize(
    ("suffix", "length"),
    [
        ("json", 10**5),
        *(
            pytest.param(each, 10**6, marks=pytest.mark.slow)
            for each in ("json", "xlsx", "md", "html")
        ),
    ],
)
def test_names_of_a_megabyte(
    suffix: str, length: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    maker = TraceMaker()
    maker.op("aten::" + "y" * length, 0, 100)
    maker.launched("x" * length, 50, 20, correlation=1, at=10)
    path = _written(maker.document(), tmp_path / "trace.json")
    assert read_trace(path).names[-1] == "x" * length
    target = tmp_path / f"report.{suffix}"
    option = ["--html", str(target)] if suffix == "html" else ["-o", str(target)]
    assert run(["report", str(path), *option]) == 0
    printed, said = capfd.readouterr()
    assert said == ""
    assert max(map(len, printed.splitlines())) < 1000, (
        "a name is cut where a person reads it"
    )


def test_empty_names_have_a_place(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    maker = TraceMaker()
    maker.op("", 0, 100)
    maker.launched("", 50, 20, correlation=1, at=10, api="")
    path = _written(maker.document(), tmp_path / "trace.json")
    assert run(["report", str(path), "-o", str(tmp_path / "r.xlsx")]) == 0
    assert (
        "No rule matches (a kernel without a name), which takes 100.0 % of GPU time."
        in capfd.readouterr().out
    )


@pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="this system has no /dev/full"
)
@pytest.mark.parametrize(
    "options",
    [["report", "-o"], ["report", "--html"], ["kernels", "-o"], ["gaps", "-o"]],
)
def test_no_space_left_where_the_output_goes(
    options: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A link to /dev/full: refused as no regular file, and never replaced by one."""
    path = _written(cuda_graph_example(), tmp_path / "trace.json")
    full = tmp_path / "full.xlsx"
    if "--html" in options:
        full = tmp_path / "full.html"
    full.symlink_to("/dev/full")
    said = _line([options[0], str(path), options[1], str(full)], capfd)
    assert "is not a regular file; choose another name" in said
    assert Path("/dev/full").is_char_device()
    assert full.is_symlink()


@pytest.mark.usefixtures("few_tables")
@pytest.mark.parametrize(
    "name",
    [
        b"\xff.json",
        b"a\x1b[31m.json",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("é\u202e.json".encode(), b"a b.json")
        ),
    ],
)
def test_names_of_files_that_a_terminal_should_not_see(
    name: bytes, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    try:
        path = _written(cuda_graph_example(), tmp_path / os.fsdecode(name))
    except OSError:
        pytest.skip("this file system has no such names")
    assert run(["report", str(path), "-o", str(tmp_path / "r.xlsx")]) == 0
    assert run(["report", str(path)]) == 0
    assert run(["report", str(path) + ".missing"]) == 1
    printed, said = capfd.readouterr()
    for text in (printed, said):
        assert "\x1b" not in text
        assert "\u202e" not in text
