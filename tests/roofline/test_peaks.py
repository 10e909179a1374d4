"""Peaks of devices: which one is chosen, and files of peaks from users."""

from __future__ import annotations

import json
import tomllib
from importlib import resources
from typing import TYPE_CHECKING

import pytest

from tests.support.make_trace import TraceMaker
from tracelens_ext import read_trace
from tracelens_ext.errors import UsageError
from tracelens_ext.roofline.peaks import (
    builtin_peaks,
    computed_peaks,
    find_peaks,
    peaks_of_devices,
    read_peaks,
)

if TYPE_CHECKING:
    from pathlib import Path

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "properties", "product"),
    [
        ("NVIDIA H100 80GB HBM3", {}, "H100 SXM"),
        ("NVIDIA H100 PCIe", {}, "H100 PCIe"),
        ("NVIDIA H100 NVL", {}, "H100 NVL"),
        ("NVIDIA A100-PG509-200", {"units": 108, "warp": 32}, "A100 SXM4 40GB"),
        ("AMD Instinct MI300X VF", {}, "MI300X"),
        ("", {"units": 304, "warp": 64, "memory_bytes": 206141652992}, "MI300X"),
        (
            "AMD Radeon Graphics",
            {"units": 104, "warp": 64, "memory_bytes": 68702699520},
            "MI210",
        ),
        ("NVIDIA GeForce RTX 2080 Ti", {}, "GeForce RTX 2080 Ti"),
        ("Quadro RTX 6000", {}, "Quadro RTX 6000"),
        ("AMD Radeon AI PRO R9700", {}, "Radeon AI PRO R9700"),
        ("AMD Instinct MI300X", {"units": 38}, "MI300X, 38 of 304 units"),
        (
            "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
            {"units": 16},
            "H100 SXM, 16 of 132 units",
        ),
    ],
)
def test_devices_are_known_by_name_or_else_by_their_size(
    name: str, properties: dict[str, int], product: str
) -> None:
    found = find_peaks(name, **properties)
    assert found is not None
    assert found.name == product


@pytest.mark.parametrize(
    ("name", "properties"),
    [
        ("", {}),
        ("ARTEMIS", {"units": 7, "warp": 32, "memory_bytes": GIB}),
        ("NVIDIA H100 of the future", {"units": 999}),
        ("NVIDIA GeForce RTX 4070 Laptop GPU", {}),
        ("AMD Radeon Graphics", {"units": 104, "warp": 64, "memory_bytes": GIB}),
    ],
)
def test_devices_that_are_not_known(name: str, properties: dict[str, int]) -> None:
    assert find_peaks(name, **properties) is None


@pytest.mark.parametrize(
    ("product", "architecture", "units", "mhz"),
    [
        ("V100 SXM2", "7.0", 80, 1530),
        ("T4", "7.5", 40, 1590),
        ("A100 SXM4 40GB", "8.0", 108, 1410),
        ("RTX 6000 Ada", "8.9", 142, 2505),
        ("B200", "10.0", 148, 1860),
    ],
)
def test_computed_peaks_are_those_of_the_datasheet(
    product: str, architecture: str, units: int, mhz: int
) -> None:
    listed = next(device for device in builtin_peaks() if device.name == product)
    computed = computed_peaks(
        product, architecture, units, mhz * 1e6, listed.memory * 1e9
    )
    assert computed is not None
    assert computed.memory == pytest.approx(listed.memory)
    for kind, peak in listed.matrix.items():
        assert computed.matrix[kind] == pytest.approx(peak, rel=0.05), kind
    assert computed.vector["fp32"] == pytest.approx(listed.vector["fp32"], rel=0.07)


def test_graphics_cards_have_lower_matrix_peaks_or_none() -> None:
    card = find_peaks("NVIDIA GeForce RTX 3090")
    gtx = find_peaks("GeForce GTX 1650")
    assert card is not None
    assert gtx is not None
    assert (round(card.matrix["bf16"]), round(card.matrix["int8"])) == (71, 285)
    assert gtx.matrix == {}


def test_gpus_by_the_numbers_of_rocm() -> None:
    maker = TraceMaker()
    maker.kernel("k", 0, 1, device=2)
    alike = [{"id": n, "name": "AMD Instinct MI300X", "numSms": 304} for n in range(2)]
    for entries, name in (
        (alike, "MI300X"),
        ([*alike, {"id": 3, "name": "AMD Instinct MI210"}], None),
    ):
        document = maker.document(deviceProperties=entries)
        (peaks,) = (
            p for n, p in peaks_of_devices(read_trace(document)).items() if n == 2
        )
        assert (peaks.name if peaks else None) == name


def test_a_part_of_a_gpu_has_its_share_of_all_peaks_but_the_link() -> None:
    whole = find_peaks("AMD Instinct MI300X")
    part = find_peaks("AMD Instinct MI300X", units=38)
    assert whole is not None
    assert part is not None
    assert part.matrix["bf16"] == pytest.approx(whole.matrix["bf16"] / 8)
    assert part.memory == pytest.approx(whole.memory / 8)
    assert part.link == whole.link


def test_peaks_are_dense_and_have_a_source() -> None:
    text = (
        resources.files("tracelens_ext.roofline")
        .joinpath("device_peaks.toml")
        .read_text()
    )
    file = tomllib.loads(text)
    assert all(file["source"].get(device) for device in file["device"])
    known = {device.name: device for device in builtin_peaks()}
    assert len(known) == len(builtin_peaks())
    assert known["H100 SXM"].matrix["bf16"] == 989.4
    assert known["H100 SXM"].peak("matrix", "fp32") == (66.9, "fp32")
    assert known["H100 SXM"].peak("matrix", "tf32") == (494.7, "tf32")


def test_each_device_of_a_trace_has_its_own_peaks(tmp_path: Path) -> None:
    maker = TraceMaker()
    for device in (0, 1, 2):
        maker.kernel("k", 10, 5, device=device)
    devices = [{"id": 0, "name": "NVIDIA H100 PCIe"}, {"id": 1, "name": "Tesla T4"}]
    path = tmp_path / "t.json"
    path.write_text(
        json.dumps(maker.document(deviceProperties=devices)), encoding="utf-8"
    )
    trace = read_trace(path)
    found = peaks_of_devices(trace)
    names = {number: peaks.name if peaks else None for number, peaks in found.items()}
    assert names == {0: "H100 PCIe", 1: "T4", 2: None}
    own = find_peaks("Tesla T4")
    assert list(peaks_of_devices(trace, own).values()) == [own] * 3


def test_peaks_of_a_user(tmp_path: Path) -> None:
    toml = tmp_path / "mine.toml"
    arch = tmp_path / "arch.json"
    toml.write_text(
        'name = "X"\nmatrix = {bf16 = 500.0}\nvector = {fp32 = 60}\nmemory = 2000\n'
    )
    found = read_peaks(toml)
    assert (found.name, found.peak("matrix", "bf16"), found.memory) == (
        "X",
        (500, "bf16"),
        2000,
    )
    assert found.link is None
    contents: dict[str, object] = {
        "name": "MI300X",
        "mem_bw_gbps": 5300,
        "memory_gb": 192,
    }
    contents["max_achievable_tflops"] = {"matrix_bf16": 708, "vector_fp32": 163.4}
    arch.write_text(json.dumps(contents))
    assert read_peaks(arch).peak("matrix", "bf16") == (708, "bf16")
    assert read_peaks("h200 sxm").name == "H200 SXM"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("memory = -1", "memory is -1; expected a positive number"),
        ("matrix = 5\nmemory = 1", "matrix is not a table"),
        ("memroy = 5", "unknown key 'memroy'"),
        ("{", "is neither TOML nor JSON"),
        ('{"mem_bw_gbps": 5}', "max_achievable_tflops is missing"),
        ("[" * 5000, "is neither TOML nor JSON"),
        ('units = "many"\nmemory = 1', "units is 'many'"),
        (
            '{"max_achievable_tflops": {}, "mem_bw_gbps": 1, "memory_gb": [1]}',
            "memory_gb is [1]",
        ),
        ("names = 5\nmemory = 1", "names is 5"),
        ("", "memory is None"),
    ],
)
def test_an_error_in_a_file_of_peaks_is_one_line(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "peaks"
    path.write_text(text)
    with pytest.raises(UsageError) as raised:
        read_peaks(path)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_device_that_is_neither_a_file_nor_known() -> None:
    with pytest.raises(
        UsageError, match=r"H100: cannot be read .* and is not one of .*H100 SXM"
    ):
        read_peaks("H100")
