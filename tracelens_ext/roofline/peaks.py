"""What a GPU could do in the best case: peaks by engine and data type, memory, link to the host.

The built-in numbers are in `device_peaks.toml`, each with its datasheet. A user's file has the same
form, or is one of TraceLens's descriptions of an architecture in JSON.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens_ext.errors import UsageError

if TYPE_CHECKING:
    from tracelens_ext.trace import Trace

#: Memory of a device that a trace describes may differ this much from the listed one.
_MEMORY_TOLERANCE = 0.06
#: The file of peaks that are known, and which products of a GeForce run at half the rate.
_KNOWN = "device_peaks.toml"
_HALVED = {"tf32", "bf16", "fp16", "fp8"}
#: What a user's file may say of a device, and what ours say besides.
_KEYS = {"name", "names", "units", "warp", "memory_gb", "matrix", "vector", "memory", "link"}
_MORE_KEYS = {"source", "partitions", "like"}


@dataclass(frozen=True)
class DevicePeaks:
    """The peaks of one device."""

    name: str  #: the product
    matrix: Mapping[str, float]  #: data type → 10^12 operations a second of the matrix engine
    vector: Mapping[str, float]  #: the same of the vector engine
    memory: float  #: bandwidth of device memory, 10^9 bytes a second
    link: float | None = None  #: bandwidth to the host in one direction, likewise; None: unknown
    names: tuple[str, ...] = ()  #: what traces call it; `*` stands for anything
    units: int = 0  #: compute units (multiprocessors); 0: not known
    warp: int = 0  #: threads of a warp or wave; 0: not known
    memory_gb: float = 0.0  #: size of its memory, 10^9 bytes; 0: not known
    cache: float = 0.0  #: its last cache, 10^6 bytes; 0: not known
    partitions: bool = False  #: whether a device of a trace may be a part of the product
    source: str = ""  #: where the numbers are from

    def peak(self, engine: str, data_type: str) -> tuple[float, str] | None:
        """10^12 operations a second, and the data type whose peak it is; None: unknown.

        A matrix product in a type without a matrix unit runs on the vector engine. The vector
        engine computes 8- and 16-bit types without a unit of their own in single precision.
        """
        if engine == "matrix":
            if data_type in self.matrix:
                return self.matrix[data_type], data_type
            if data_type == "tf32":
                return self.peak(engine, "fp32")
        if data_type in self.vector:
            return self.vector[data_type], data_type
        wide = "fp64" if data_type in ("fp64", "complex128") else "fp32"
        found = self.vector.get(wide)
        return None if found is None else (found, wide)

    def part(self, units: int) -> DevicePeaks:
        """The peaks of a part with so many compute units: its share of everything but the link."""
        share = units / self.units
        name = f"{self.name}, {units} of {self.units} units"
        matrix = _times(share, self.matrix)
        vector = _times(share, self.vector)
        memory = self.memory * share
        return replace(self, name=name, matrix=matrix, vector=vector, memory=memory, units=units)


def _times(factor: float, peaks: Mapping[str, float]) -> dict[str, float]:
    return {kind: peak * factor for kind, peak in peaks.items()}


@lru_cache(maxsize=1)
def builtin_peaks() -> tuple[DevicePeaks, ...]:
    """The devices that are known here, with all their figures."""
    found = []
    said: dict[str, dict[str, Any]] = {}
    for name, entry in _known()["device"].items():
        said[name] = said.get(entry.get("like"), {}) | entry
        maker, warp = ("AMD Instinct", 64) if name.startswith("MI") else ("NVIDIA", 32)
        usual = {"name": name, "names": [f"{maker} {name}"], "warp": warp}
        usual |= {"source": _known()["source"][name]}
        if rates := _known()["architecture"].get(_version(capability_of(name))):
            usual["link"] = rates["link"]
        about = {key: of for key, of in _about(name).items() if key in _KEYS | _MORE_KEYS}
        found.append(_device(usual | about | said[name], _KNOWN))
    return tuple(found)


def _version(capability: int) -> str:
    return f"{capability // 10}.{capability % 10}"


@lru_cache(maxsize=1)
def _known() -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__ or "").joinpath(_KNOWN).read_text("utf-8"))


def _about(name: str) -> dict[str, float]:
    """The figures of a product, by all beginnings of its name that are listed."""
    rows = sorted(_known()["product"].items(), key=lambda row: len(row[0]))
    return {k: v for begin, row in rows if name.startswith(begin) for k, v in row.items()}


def capability_of(name: str) -> int:
    """Ten times NVIDIA's compute capability of a product; 0: not known, or of another maker."""
    return int(_about(name).get("capability", 0))


def peer_links_of(name: str) -> tuple[float, float]:
    """What a product moves to another GPU of its board, and to all, bytes a ns; 0: not known."""
    about = _about(name)
    return float(about.get("peer", 0)), float(about.get("peers", 0))


def shared_memory_of(capability: int) -> int:
    """Bytes of shared memory of a multiprocessor; 0: not known."""
    return 1024 * int(_known()["shared_memory"].get(str(capability), 0))


@lru_cache(maxsize=1)
def _cards() -> dict[str, DevicePeaks | None]:
    """Graphics cards by their names in lower case; their peaks are computed."""
    found = {}
    for architecture, cards in _known()["cards"].items():
        for card in cards.split(";"):
            name, _, figures = (part.strip() for part in card.partition("="))
            units, mhz, memory = map(float, figures.split(","))
            about = int(units), mhz * 1e6, memory * 1e9
            found[name.lower()] = computed_peaks(name, architecture, *about)
    return found


def computed_peaks(
    name: str, architecture: str, units: int, clock_hz: float, bandwidth: float
) -> DevicePeaks | None:
    """Peaks by clock and compute units; None where any of it is not known.

    `architecture`: NVIDIA's compute capability, or `RDNA3` and the like.
    """
    rates = _known()["architecture"].get(architecture)
    if rates is None or not (units and clock_hz and bandwidth):
        return None
    scale = units * clock_hz / 1e12
    halved = _HALVED if "GeForce" in name else set()
    products = {} if "GTX" in name else rates.get("matrix", {})
    matrix = {k: rate * scale / (1 + (k in halved)) for k, rate in products.items()}
    made = DevicePeaks(name, matrix, _times(scale, rates["vector"]), bandwidth / 1e9, rates["link"])
    source = f"computed: {units} units, {clock_hz / 1e6:.0f} MHz, architecture {architecture}"
    cache = float(_about(name).get("cache", 0))
    return replace(made, units=units, cache=cache, source=source)


def find_peaks(
    name: str, *, units: int = 0, warp: int = 0, memory_bytes: int = 0
) -> DevicePeaks | None:
    """The peaks of a device as a trace describes it; None for an unknown one.

    `name`: as the profiler gives it; it may be empty, or tell nothing. Compute units, threads of a
    warp and the size of its memory are 0 where they are not recorded.
    """
    whole = name.split(" MIG ")[0].strip()
    for device in builtin_peaks():
        if any(fnmatchcase(whole.lower(), pattern.lower()) for pattern in device.names):
            is_part = (device.partitions or whole != name.strip()) and 0 < units < device.units
            return device.part(units) if is_part else device
    if card := _cards().get(whole.lower().removeprefix("nvidia ").removeprefix("amd ")):
        return card
    for device in builtin_peaks() if units else ():
        near = abs(memory_bytes / 1e9 - device.memory_gb) <= _MEMORY_TOLERANCE * device.memory_gb
        if device.units == units and device.warp == warp and device.memory_gb and near:
            return device
    return None


def peaks_of_devices(trace: Trace, own: DevicePeaks | None = None) -> dict[int, DevicePeaks | None]:
    """What each device that did the work could do, by its number; None for an unknown one."""
    found: dict[int, DevicePeaks | None] = {}
    for number in sorted(set(trace.device.tolist())):
        found[number] = own
        if own is None and (its := trace.described(number)) is not None:
            told = its.units, its.clock_hz, its.bandwidth
            found[number] = find_peaks(
                its.name, units=its.units, warp=its.warp, memory_bytes=its.memory_bytes
            ) or computed_peaks(its.name, _version(its.capability), *told)
    return found


def device_models(trace: Trace, peaks: Mapping[int, DevicePeaks | None]) -> dict[int, str]:
    """Return the GPU model of each device where there are several; empty where there is one.

    A device without known peaks goes by the name that the trace gives it. Devices that are judged
    by the same peaks are one model, as all are by those that a user gives.
    """
    models = {number: _model_name(trace, number, known) for number, known in peaks.items()}
    return models if len(set(models.values())) > 1 else {}


def _model_name(trace: Trace, number: int, peaks: DevicePeaks | None) -> str:
    if peaks is not None:
        return peaks.name
    device = trace.described(number)
    return device.name if device is not None and device.name else "unknown GPU"


def read_peaks(path: str | os.PathLike[str]) -> DevicePeaks:
    """The peaks in a user's file, or those of a known device.

    `path`: TOML as `device_peaks.toml`, or TraceLens's JSON; or the name of a device that is known
    here, such as `H100 SXM`.
    """
    path = Path(path)
    products = {device.name.casefold(): device for device in builtin_peaks()}
    known = products.get(str(path).casefold()) or find_peaks(str(path))
    if known and not path.exists():
        return known
    try:
        text = path.read_text("utf-8")
        is_json = text.lstrip().startswith("{")
        entry = json.loads(text) if is_json else tomllib.loads(text)
    except OSError as error:
        names = ", ".join(device.name for device in products.values())
        why = f"cannot be read ({error.strerror or error}), nor is it one of {names}"
        raise UsageError(f"{path}: {why}") from error
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"{path}: is neither TOML nor JSON ({reason})") from error
    if is_json:
        return _from_tracelens(entry, str(path))
    devices = entry.get("device", entry)
    if devices is not entry and isinstance(devices, dict):  # as ours are written
        devices = [{"name": name, **of} for name, of in devices.items() if isinstance(of, dict)]
    if isinstance(devices, list):
        if len(devices) != 1:
            raise UsageError(f"{path}: holds {len(devices)} devices; give one")
        devices = devices[0]
    return _device(devices, str(path))


def _device(entry: object, where: str) -> DevicePeaks:
    if not isinstance(entry, dict):
        raise UsageError(f"{where}: expected the keys of a [[device]], see docs/roofline.md")
    for unknown in sorted(set(entry) - _KEYS - _MORE_KEYS):
        raise UsageError(f"{where}: unknown key {unknown!r}; there are {', '.join(sorted(_KEYS))}")
    engines = {}
    for engine in ("matrix", "vector"):
        rates = entry.get(engine, {})
        if not isinstance(rates, dict):
            raise UsageError(f"{where}: {engine} is no table; expected data type = number")
        engines[engine] = {kind: _number(rates, kind, f"{where}: {engine}") for kind in rates}
    names = entry.get("names", [])
    if not isinstance(names, list):
        raise UsageError(f"{where}: names is {names!r}; expected a list of texts")
    name = str(entry.get("name", "your device"))
    memory = _number(entry, "memory", where)
    link = _number(entry, "link", where) if "link" in entry else None
    usual = {"units": 0, "warp": 0, "memory_gb": 0, "cache": 0} | _about(name)
    units, warp, size = (
        _number(entry, key, where, usual[key]) for key in ("units", "warp", "memory_gb")
    )
    made = DevicePeaks(name, engines["matrix"], engines["vector"], memory, link)
    made = replace(made, names=tuple(map(str, names)), source=str(entry.get("source", where)))
    made = replace(made, units=int(units), warp=int(warp), memory_gb=size)
    return replace(made, cache=float(usual["cache"]), partitions=bool(entry.get("partitions")))


def _from_tracelens(entry: dict[str, Any], where: str) -> DevicePeaks:
    """TraceLens's description: `name`, `mem_bw_gbps`, `memory_gb`, `max_achievable_tflops`."""
    matrix: dict[str, float] = {}
    vector: dict[str, float] = {}
    peaks = entry.get("max_achievable_tflops")
    if not isinstance(peaks, dict):
        raise UsageError(f"{where}: max_achievable_tflops is missing; expected type → number")
    for key in peaks:
        kind = key.removeprefix("vector_").removeprefix("matrix_").replace("xf32", "tf32")
        (vector if key.startswith("vector_") else matrix)[kind] = _number(peaks, key, where)
    name = str(entry.get("name", "your device"))
    memory = _number(entry, "mem_bw_gbps", where)
    size = _number(entry, "memory_gb", where, 0)
    return DevicePeaks(name, matrix, vector, memory, memory_gb=size, source=where)


def _number(table: Mapping[str, Any], key: str, where: str, default: float | None = None) -> float:
    value = table.get(key, default)
    if default is not None and value == default:
        return float(default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise UsageError(f"{where}: {key} is {value!r}; expected a positive number")
    return float(value)
