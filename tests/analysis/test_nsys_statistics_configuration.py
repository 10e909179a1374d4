"""Configuration files: accepted forms, checks of every key, and errors that name the key."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.statistics_helpers import GPA, SPECIFICATION, TAG
from tracelens_ext.analysis.nsys_statistics.commented_json import plain_json
from tracelens_ext.analysis.nsys_statistics.configuration import (
    InputSpec,
    load_class_map,
    load_configuration,
)
from tracelens_ext.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

ARGUMENTS = {"num_of_iters": 5, "num_of_gpus": 2, "nvtx_tag_of_iter": "step"}


def csv_input(**changes: Any) -> dict[str, Any]:
    """Return an input of tables, in which some members are replaced."""
    members = {
        "format": "csv",
        "title": "A",
        "nsys_csv_file_path": {
            "kernel_sum": "k.csv",
            "nvtx_proj_trace": "n.csv",
            "mem_time_sum": "m.csv",
        },
        "analysis_args": ARGUMENTS,
    }
    return members | changes


def report_input(**changes: Any) -> dict[str, Any]:
    """Return an input that is a report, in which some members are replaced."""
    members = {
        "format": "nsys-rep",
        "nsys_report": {"path": "r.nsys-rep", "with_nvtx": True, "with_mem": True},
        "analysis_args": ARGUMENTS,
    }
    return members | changes


def loaded(folder: Path, *inputs: Any, **members: Any) -> tuple[InputSpec, ...]:
    """Write a configuration with these inputs to a folder, and load it."""
    path = folder / "config.json"
    document = {"inputs": list(inputs), "kernel_to_class_map": {"a": "b"}} | members
    path.write_text(json.dumps(document), encoding="utf-8")
    return load_configuration(path).inputs


def write(folder: Path, *names: str) -> None:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).touch()


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    write(tmp_path, "k.csv", "n.csv", "m.csv")
    (spec,) = loaded(tmp_path, csv_input())
    assert spec == InputSpec(
        title="A",
        kernels=tmp_path / "k.csv",
        nvtx=tmp_path / "n.csv",
        mem=tmp_path / "m.csv",
        iterations=5,
        gpus=2,
        iteration_range="step",
    )
    absolute = {"kernel_sum": "/x/k.csv"}
    (spec,) = loaded(tmp_path, csv_input(nsys_csv_file_path=absolute))
    assert spec.files == [Path("/x/k.csv")]


def test_paths_are_also_searched_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "example", "k.csv", "n.csv", "m.csv")
    monkeypatch.chdir(tmp_path)
    files = {"kernel_sum": "example/k.csv", "mem_time_sum": "m.csv"}
    (spec,) = loaded(Path("example"), csv_input(nsys_csv_file_path=files))
    assert spec.files == [Path("example/k.csv"), Path("example/m.csv")]
    assert not spec.missing
    (spec,) = loaded(
        Path("example"), csv_input(nsys_csv_file_path={"kernel_sum": "no.csv"})
    )
    places = "example/no.csv nor " + str(tmp_path / "no.csv")
    key = "inputs[0].nsys_csv_file_path.kernel_sum"
    assert (
        spec.missing
        == f"example/config.json: {key}: neither {places} exists; check the path"
    )


def test_arguments_of_the_original_that_are_not_needed_are_ignored_with_a_remark(
    tmp_path: Path,
) -> None:
    write(tmp_path, "k.csv", "n.csv", "m.csv")
    old = ARGUMENTS | {"kernel_name_idx": 8, "with_header": True, "nvtx_tag_idx": 0}
    (spec,) = loaded(tmp_path, csv_input(format="CSV", analysis_args=old))
    (same,) = loaded(tmp_path, csv_input())
    keys = "kernel_name_idx, with_header, nvtx_tag_idx"
    assert spec.remarks == (
        f"{keys}: not needed; the columns are recognized by their titles",
    )
    assert spec.files == same.files


def test_a_key_that_occurs_twice_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"kernel_to_class_map": {"a": "x", "b": "y", "a": "z"}}')
    with pytest.raises(
        ConfigurationError, match=r"config\.json: the key 'a' occurs twice"
    ):
        load_configuration(path)


@pytest.mark.parametrize(
    "missing", [{}, {"nvtx_proj_trace": None, "mem_time_sum": None}]
)
def test_ranges_and_memory_may_be_null_or_absent(
    missing: dict[str, None], tmp_path: Path
) -> None:
    files = {"kernel_sum": "k.csv"} | missing
    (spec,) = loaded(tmp_path, csv_input(nsys_csv_file_path=files))
    assert (spec.nvtx, spec.mem, spec.iteration_range) == (None, None, None)


@pytest.mark.parametrize("chosen", ["nsys-rep", "sqlite"])
def test_an_input_may_be_a_report(chosen: str, tmp_path: Path) -> None:
    write(tmp_path, "r.nsys-rep", "r.sqlite")
    (spec,) = loaded(tmp_path, report_input(format=chosen))
    assert spec == InputSpec(
        trace=tmp_path / "r.nsys-rep", iterations=5, gpus=2, iteration_range="step"
    )
    without = {"path": "r.sqlite", "with_nvtx": False, "with_mem": False}
    (spec,) = loaded(tmp_path, report_input(format=chosen, nsys_report=without))
    assert (spec.iteration_range, spec.with_memory) == (None, False)


def test_the_sections_of_other_formats_do_not_matter(tmp_path: Path) -> None:
    specs = loaded(
        tmp_path, csv_input(nsys_report=None), report_input(nsys_csv_file_path={})
    )
    assert [spec.heading for spec in specs] == ["A", "r"]


WRONG: list[tuple[Callable[[], dict[str, Any]], str]] = [
    (
        lambda: csv_input(formt="csv"),
        "inputs[0].formt: unknown key; did you mean 'format'?",
    ),
    (
        lambda: csv_input(format="xml"),
        "inputs[0].format: expected one of csv, nsys-rep, sqlite",
    ),
    (
        lambda: csv_input(format=None),
        "inputs[0].format: expected one of csv, nsys-rep, sqlite, got",
    ),
    (lambda: csv_input(title=5), "inputs[0].title: expected a string, got 5"),
    (
        lambda: csv_input(analysis_args=None),
        "inputs[0].analysis_args: expected an object, got not",
    ),
    (
        lambda: csv_input(analysis_args=ARGUMENTS | {"num_of_iters": "5"}),
        "inputs[0].analysis_args.num_of_iters: expected an integer from 1, got '5'",
    ),
    (
        lambda: csv_input(analysis_args=ARGUMENTS | {"num_of_gpus": True}),
        "inputs[0].analysis_args.num_of_gpus: expected an integer from 1, got True",
    ),
    (
        lambda: csv_input(analysis_args=ARGUMENTS | {"num_of_gpu": 1}),
        "inputs[0].analysis_args.num_of_gpu: unknown key; did you mean 'num_of_gpus'?",
    ),
    (
        lambda: csv_input(analysis_args={"num_of_iters": 5}),
        "inputs[0].analysis_args.nvtx_tag_of_iter: expected the name of the NVTX ranges, got noth",
    ),
    (
        lambda: csv_input(nsys_csv_file_path={"mem_time_sum": "m.csv"}),
        "inputs[0].nsys_csv_file_path.kernel_sum: expected a file name, got nothing",
    ),
    (
        lambda: report_input(nsys_report={"path": "x", "with_mem": "yes"}),
        "inputs[0].nsys_report.with_mem: expected true or false, got 'yes'",
    ),
    (
        lambda: report_input(analysis_args={"num_of_iters": 1}),
        "inputs[0].analysis_args.nvtx_tag_of_iter: expected the name",
    ),
    (
        lambda: report_input(nsys_report=[]),
        "inputs[0].nsys_report: expected an object, got []",
    ),
]


@pytest.mark.parametrize(("make", "problem"), WRONG)
def test_errors_name_the_wrong_key(
    make: Callable[[], dict[str, Any]], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        loaded(tmp_path, make())
    assert f"config.json: {problem}" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[]", "the file: expected an object, got []"),
        ("{}", "inputs: expected a list of inputs, got nothing"),
        ('{"inputs": []}', "expected at least one input"),
        ('{"inputs": [5]}', "inputs[0]: expected an object, got 5"),
        ('{"inputs": [], "class_map": {}}', "class_map: unknown key"),
        ('{"inputs": [}', "is not valid JSON: Expecting value: line 1 column 13"),
        ("/* never closed", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
    ],
)
def test_files_that_are_not_a_configuration_are_refused(
    text: str, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError) as caught:
        load_configuration(path)
    assert problem in str(caught.value)


def test_class_maps_must_contain_texts(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match="kernel_to_class_map: expected an object of str"
    ):
        loaded(tmp_path, csv_input(), kernel_to_class_map={"a": 1})
    path = tmp_path / "map.json"
    path.write_text('["a"]')
    with pytest.raises(ConfigurationError, match="is not a class map"):
        load_class_map(path)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_class_map(tmp_path / "absent.json")


def test_files_that_are_not_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(ConfigurationError, match="is not UTF-8 text"):
        load_configuration(path)


def test_comments_and_trailing_commas_are_removed_except_in_strings() -> None:
    text = """\
    { // a comment, "with a quote
      "a": "// no comment", /* several
      lines , } */ "b": "/* none */ ,]",
      "c": [1, 2, /* last */ ], "d\\\\": "\\",}",
    }
    """
    expected = {"a": "// no comment", "b": "/* none */ ,]", "c": [1, 2], "d\\": '",}'}
    plain_text = plain_json(text)
    assert json.loads(plain_text) == expected
    lengths = [len(line) for line in text.split("\n")]
    assert [len(line) for line in plain_text.split("\n")] == lengths


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('ab,/*"\\}]{[ \n'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('ab,/*"\\}]'), inner),
    max_leaves=12,
)


@given(JSON, st.sampled_from([None, 1]))
def test_json_without_comments_is_not_changed(
    value: object, indent: int | None
) -> None:
    text = json.dumps(value, indent=indent)
    assert plain_json(text) == text


def test_a_class_map_is_read_from_its_own_file_or_a_configuration(
    tmp_path: Path,
) -> None:
    path = tmp_path / "map.json"
    path.write_text('// a comment\n{"Softmax": "a", "gemm": "b",}')
    assert list(load_class_map(path).items()) == [("Softmax", "a"), ("gemm", "b")]
    loaded(tmp_path, csv_input())
    assert load_class_map(tmp_path / "config.json") == {"a": "b"}


@pytest.mark.real_data
def test_the_example_of_the_specification_is_read(tmp_path: Path) -> None:
    text = SPECIFICATION.read_text(encoding="utf-8")
    (document,) = re.findall(
        r'^```json\n(\{\n    "inputs".*?)^```', text, re.DOTALL | re.MULTILINE
    )
    path = tmp_path / "config.json"
    path.write_text(document, encoding="utf-8")
    configuration = load_configuration(path)
    csv, report = configuration.inputs
    assert configuration.class_map == {"part_of_kernel_name": "corresponding_class"}
    assert csv.kernels is not None
    assert csv.kernels.name == "llama2-70B-GBS512-FSDP256_cuda_gpu_kern_sum.csv"
    assert (csv.iterations, csv.gpus, csv.iteration_range) == (5, 1, TAG)
    assert report.trace == tmp_path / "example" / "llama2-70B-GBS512-FSDP256.nsys-rep"
    assert (report.heading, report.iteration_range) == ("Llama2-70B-From-NSYS-REP", TAG)


@pytest.mark.real_data
def test_a_real_configuration_is_read() -> None:
    configuration = load_configuration(GPA / "config.json")
    (spec,) = configuration.inputs
    assert spec.nvtx is None
    assert spec.iterations == 5
    assert next(iter(configuration.class_map or {})) == "xmma_gemm"
