"""What a GPU could do in the best case: peaks by engine and data type, memory, link to the host.

The built-in numbers are in `device_peaks.toml`, each with its datasheet. A user's file has the same
form, or is one of TraceLens's descriptions of an architecture in JSON.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tracelens_ext.errors import UsageError

if TYPE_CHECKING:
    from tracelens_ext.trace import Device, Trace

#: Memory of a device that a trace describes may differ this much from the listed one.
_MEMORY_TOLERANCE: Final = 0.06
#: The file of peaks that are known, and which products of a GeForce run at half the rate.
_KNOWN_PEAKS_FILE: Final = "device_peaks.toml"
_HALVED_TYPES: Final = frozenset({"tf32", "bf16", "fp16", "fp8"})
#: What a user's file may say of a device, and what ours say besides.
_KEYS: Final = frozenset(
    {
        "name",
        "names",
        "units",
        "warp",
        "memory_gb",
        "matrix",
        "vector",
        "memory",
        "link",
    }
)
_KEYS_OF_OURS: Final = frozenset({"source", "partitions", "like"})
_UNNAMED_DEVICE: Final = "your device"
#: No figure of a device is as large.
_LARGEST_NUMBER: Final = 1e9
_BYTES_IN_KILOBYTE: Final = 1024
#: A name that tells the architecture, and not which GPU it is.
_GENERIC_NAME: Final = re.compile(r"compute capability|\bgfx\d")


class Peak(NamedTuple):
    """The peak of an engine."""

    tera_operations: float  #: 10^12 operations a second
    data_type: str  #: the type whose peak it is


@dataclass(frozen=True)
class DevicePeaks:
    """The peaks of one device."""

    name: str  #: the product
    #: data type → 10^12 operations a second of the matrix engine
    matrix: Mapping[str, float]
    vector: Mapping[str, float]  #: the same of the vector engine
    memory: float  #: bandwidth of device memory, 10^9 bytes a second
    #: bandwidth to the host in one direction, likewise; None: unknown
    link: float | None = None
    names: tuple[str, ...] = ()  #: what traces call it; `*` stands for anything
    units: int = 0  #: compute units (multiprocessors); 0: not known
    warp: int = 0  #: threads of a warp or wave; 0: not known
    memory_gb: float = 0.0  #: size of its memory, 10^9 bytes; 0: not known
    cache: float = 0.0  #: its last cache, 10^6 bytes; 0: not known
    #: True if a device of a trace may be a part of the product
    partitions: bool = False
    source: str = ""  #: where the numbers are from

    def peak(self, engine: str, data_type: str) -> Peak | None:
        """Return the peak of an engine for a data type; None: unknown.

        A matrix product in a type without a matrix unit runs on the vector engine. The vector
        engine computes 8- and 16-bit types without a unit of their own in single precision.
        """
        if engine == "matrix":
            if data_type in self.matrix:
                return Peak(self.matrix[data_type], data_type)
            if data_type == "tf32":
                return self.peak(engine, "fp32")
        if data_type in self.vector:
            return Peak(self.vector[data_type], data_type)
        wide_type = "fp64" if data_type in ("fp64", "complex128") else "fp32"
        if wide_type not in self.vector:
            return None
        return Peak(self.vector[wide_type], wide_type)

    def part(self, units: int) -> DevicePeaks:
        """Return the peaks of a part with so many compute units.

        It has its share of everything but the link.
        """
        share = units / self.units
        return replace(
            self,
            name=f"{self.name}, {units} of {self.units} units",
            matrix=_scaled(self.matrix, share),
            vector=_scaled(self.vector, share),
            memory=self.memory * share,
            units=units,
        )


def _scaled(peaks: Mapping[str, float], factor: float) -> dict[str, float]:
    return {data_type: peak * factor for data_type, peak in peaks.items()}


@lru_cache(maxsize=1)
def builtin_peaks() -> tuple[DevicePeaks, ...]:
    """Return the devices that are known here, with all their figures."""
    known_peaks = _known_peaks()
    devices = []
    entries: dict[str, dict[str, Any]] = {}
    for name, entry in known_peaks["device"].items():
        alike = entries.get(entry.get("like"), {})
        entries[name] = {**alike, **entry}
        devices.append(_device(_with_defaults(name, entries[name]), _KNOWN_PEAKS_FILE))
    return tuple(devices)


def _with_defaults(name: str, entry: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of one of our devices with what its name and architecture say of it."""
    known_peaks = _known_peaks()
    is_amd = name.startswith("MI")
    maker = "AMD Instinct" if is_amd else "NVIDIA"
    defaults: dict[str, Any] = {
        "name": name,
        "names": [f"{maker} {name}"],
        "warp": 64 if is_amd else 32,
        "source": known_peaks["source"][name],
    }
    rates = known_peaks["architecture"].get(_version(capability_of(name)))
    if rates:
        defaults["link"] = rates["link"]
    figures = _product_figures(name)
    known_figures = {
        key: figures[key] for key in figures if key in _KEYS | _KEYS_OF_OURS
    }
    return {**defaults, **known_figures, **entry}


def _version(capability: int) -> str:
    """Return a compute capability as NVIDIA writes it: `9.0` for 90."""
    return f"{capability // 10}.{capability % 10}"


@lru_cache(maxsize=1)
def _known_peaks() -> dict[str, Any]:
    file = resources.files(__package__ or "").joinpath(_KNOWN_PEAKS_FILE)
    return tomllib.loads(file.read_text("utf-8"))


def _product_figures(name: str) -> dict[str, float]:
    """Return the figures of a product, by all beginnings of its name that are listed."""
    products = _known_peaks()["product"]
    figures: dict[str, float] = {}
    for beginning in sorted(products, key=len):
        if name.startswith(beginning):
            figures.update(products[beginning])
    return figures


def capability_of(name: str) -> int:
    """Return ten times NVIDIA's compute capability of a product.

    0: not known, or of another maker.
    """
    return int(_product_figures(name).get("capability", 0))


def peer_links_of(name: str) -> tuple[float, float]:
    """Return what a product moves to another GPU of its board, and to all, bytes a ns.

    0: not known.
    """
    figures = _product_figures(name)
    return float(figures.get("peer", 0)), float(figures.get("peers", 0))


def shared_memory_of(capability: int) -> int:
    """Return the bytes of shared memory of a multiprocessor; 0: not known."""
    kilobytes = _known_peaks()["shared_memory"].get(str(capability), 0)
    return _BYTES_IN_KILOBYTE * int(kilobytes)


@lru_cache(maxsize=1)
def _graphics_cards() -> dict[str, DevicePeaks | None]:
    """Return graphics cards by their names in lower case; their peaks are computed."""
    peaks_of_cards = {}
    for architecture, cards in _known_peaks()["cards"].items():
        for card in cards.split(";"):
            name, _, figures = (part.strip() for part in card.partition("="))
            units, megahertz, gigabytes_a_second = map(float, figures.split(","))
            peaks_of_cards[name.lower()] = computed_peaks(
                name,
                architecture,
                units=int(units),
                clock_hz=megahertz * 1e6,
                bandwidth=gigabytes_a_second * 1e9,
            )
    return peaks_of_cards


def computed_peaks(
    name: str, architecture: str, units: int, clock_hz: float, bandwidth: float
) -> DevicePeaks | None:
    """Return peaks by clock and compute units; None where any of it is not known.

    Args:
        name: of the product.
        architecture: NVIDIA's compute capability, or `RDNA3` and the like.
        units: compute units.
        clock_hz: their clock.
        bandwidth: that of the memory, bytes a second.
    """
    rates = _known_peaks()["architecture"].get(architecture)
    if rates is None or not (units and clock_hz and bandwidth):
        return None
    scale = units * clock_hz / 1e12
    matrix = {}
    has_matrix_units = "GTX" not in name
    if has_matrix_units:
        for data_type, rate in rates.get("matrix", {}).items():
            matrix[data_type] = rate * scale
            if "GeForce" in name and data_type in _HALVED_TYPES:
                matrix[data_type] /= 2
    return DevicePeaks(
        name=name,
        matrix=matrix,
        vector=_scaled(rates["vector"], scale),
        memory=bandwidth / 1e9,
        link=rates["link"],
        units=units,
        cache=float(_product_figures(name).get("cache", 0)),
        source=f"computed: {units} units, {clock_hz / 1e6:.0f} MHz, architecture {architecture}",
    )


def find_peaks(
    name: str, *, units: int = 0, warp: int = 0, memory_bytes: int = 0
) -> DevicePeaks | None:
    """Return the peaks of a device as a trace describes it; None for an unknown one.

    Args:
        name: as the profiler gives it; it may be empty, or tell nothing.
        units: its compute units; 0 where they are not recorded.
        warp: threads of a warp; likewise.
        memory_bytes: the size of its memory; likewise.
    """
    product_name = name.split(" MIG ")[0].strip()
    is_slice = product_name != name.strip()
    for device in builtin_peaks():
        if _goes_by(device, product_name):
            may_be_part = device.partitions or is_slice
            if may_be_part and 0 < units < device.units:
                return device.part(units)
            return device
    card_name = product_name.lower().removeprefix("nvidia ").removeprefix("amd ")
    card = _graphics_cards().get(card_name)
    if card is not None or not units:
        return card
    for device in builtin_peaks():
        if device.units != units or device.warp != warp:
            continue
        if _has_memory(device, memory_bytes):
            return device
    return None


def _goes_by(device: DevicePeaks, name: str) -> bool:
    """Return whether a device goes by a name in traces."""
    return any(fnmatchcase(name.lower(), pattern.lower()) for pattern in device.names)


def _has_memory(device: DevicePeaks, memory_bytes: int) -> bool:
    """Return whether a device is known to have about so much memory."""
    difference = abs(memory_bytes / 1e9 - device.memory_gb)
    return device.memory_gb > 0 and difference <= _MEMORY_TOLERANCE * device.memory_gb


def peaks_of_devices(
    trace: Trace, given_peaks: DevicePeaks | None = None
) -> dict[int, DevicePeaks | None]:
    """Return what each device that did the work could do, by its number; None: unknown.

    Args:
        trace: with its devices.
        given_peaks: peaks to use for all of them instead.
    """
    peaks: dict[int, DevicePeaks | None] = {}
    device_numbers = set(trace.device.tolist())
    for number in sorted(device_numbers):
        device = trace.described(number)
        if given_peaks is not None or device is None:
            peaks[number] = given_peaks
        else:
            peaks[number] = _peaks_of_device(device)
    return peaks


def _peaks_of_device(device: Device) -> DevicePeaks | None:
    """Return the peaks of a device that a trace describes."""
    listed = find_peaks(
        device.name,
        units=device.units,
        warp=device.warp,
        memory_bytes=device.memory_bytes,
    )
    if listed is not None:
        return listed
    return computed_peaks(
        device.name,
        _version(device.capability),
        units=device.units,
        clock_hz=device.clock_hz,
        bandwidth=device.bandwidth,
    )


def recognized_products(trace: Trace) -> dict[int, str]:
    """Return the product of each device whose name in the trace does not tell it.

    JAX names an AMD GPU by its architecture only; its size and memory tell which one it is.
    """
    products = {}
    for number, peaks in peaks_of_devices(trace).items():
        device = trace.described(number)
        if peaks is None or device is None:
            continue
        tells_product = bool(device.name) and not _GENERIC_NAME.search(device.name)
        if not tells_product:
            products[number] = peaks.name
    return products


def device_models(
    trace: Trace, peaks: Mapping[int, DevicePeaks | None]
) -> dict[int, str]:
    """Return the GPU model of each device where there are several; empty where there is one.

    A device without known peaks goes by the name that the trace gives it. Devices that are judged
    by the same peaks are one model, as all are by those that a user gives.
    """
    models = {}
    for number, known_peaks in peaks.items():
        models[number] = _model_name(trace, number, known_peaks)
    has_several = len(set(models.values())) > 1
    if not has_several:
        return {}
    return models


def _model_name(trace: Trace, number: int, peaks: DevicePeaks | None) -> str:
    if peaks is not None:
        return peaks.name
    device = trace.described(number)
    return device.name if device is not None and device.name else "unknown GPU"


def read_peaks(path: str | os.PathLike[str]) -> DevicePeaks:
    """Return the peaks in a user's file, or those of a known device.

    Args:
        path: TOML as `device_peaks.toml`, or TraceLens's JSON; or the name of a device that is
            known here, such as `H100 SXM`.

    Raises:
        UsageError: it is neither.
    """
    path = Path(path)
    products = {device.name.casefold(): device for device in builtin_peaks()}
    known_device = products.get(str(path).casefold()) or find_peaks(str(path))
    if known_device and not path.exists():
        return known_device
    try:
        text = path.read_text("utf-8")
        is_json = text.lstrip().startswith("{")
        entry = json.loads(text) if is_json else tomllib.loads(text)
    except OSError as error:
        names = ", ".join(device.name for device in products.values())
        reason = f"cannot be read ({error.strerror or error}) and is not one of {names}"
        raise UsageError(f"{path}: {reason}") from error
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"{path}: is neither TOML nor JSON ({reason})") from error
    if is_json:
        return _from_tracelens(entry, str(path))
    return _device(_only_device(entry, str(path)), str(path))


def _only_device(document: dict[str, Any], where: str) -> object:
    """Return the one device that a user's file has: as `[[device]]`, `[device.NAME]`, or alone."""
    if "device" not in document:
        return document
    devices = document["device"]
    if isinstance(devices, dict):  # as ours are written
        devices = [
            {"name": name, **entry}
            for name, entry in devices.items()
            if isinstance(entry, dict)
        ]
    if not isinstance(devices, list):
        return devices
    if len(devices) != 1:
        raise UsageError(f"{where}: contains {len(devices)} devices; give one")
    return devices[0]


def _device(entry: object, where: str) -> DevicePeaks:
    """Return the peaks that an entry of a file has.

    Args:
        entry: as it was read.
        where: what messages call the file.

    Raises:
        UsageError: something is missing, unknown or of the wrong type.
    """
    if not isinstance(entry, dict):
        raise UsageError(
            f"{where}: expected a [[device]] with the keys {', '.join(sorted(_KEYS))}"
        )
    for unknown in sorted(set(entry) - _KEYS - _KEYS_OF_OURS):
        raise UsageError(
            f"{where}: unknown key {unknown!r}; there are {', '.join(sorted(_KEYS))}"
        )
    matrix = _rates_of_engine(entry, "matrix", where)
    vector = _rates_of_engine(entry, "vector", where)
    names = entry.get("names", [])
    if not isinstance(names, list):
        raise UsageError(f"{where}: names is {names!r}; expected a list of strings")
    name = str(entry.get("name", _UNNAMED_DEVICE))
    figures = _product_figures(name)
    return DevicePeaks(
        name=name,
        matrix=matrix,
        vector=vector,
        memory=_number(entry, "memory", where),
        link=_number(entry, "link", where) if "link" in entry else None,
        names=tuple(map(str, names)),
        units=int(
            _number(
                table=entry, key="units", where=where, default=figures.get("units", 0)
            )
        ),
        warp=int(
            _number(
                table=entry, key="warp", where=where, default=figures.get("warp", 0)
            )
        ),
        memory_gb=_number(
            table=entry,
            key="memory_gb",
            where=where,
            default=figures.get("memory_gb", 0),
        ),
        cache=float(figures.get("cache", 0)),
        partitions=bool(entry.get("partitions")),
        source=str(entry.get("source", where)),
    )


def _rates_of_engine(
    entry: Mapping[str, Any], engine: str, where: str
) -> dict[str, float]:
    rates = entry.get(engine, {})
    if not isinstance(rates, dict):
        raise UsageError(
            f"{where}: {engine} is not a table; expected data type = number"
        )
    numbers = {}
    for data_type in rates:
        numbers[data_type] = _number(rates, data_type, f"{where}: {engine}")
    return numbers


def _from_tracelens(entry: dict[str, Any], where: str) -> DevicePeaks:
    """Read TraceLens's description: `name`, `mem_bw_gbps`, `memory_gb`, `max_achievable_tflops`."""
    peaks = entry.get("max_achievable_tflops")
    if not isinstance(peaks, dict):
        raise UsageError(
            f"{where}: max_achievable_tflops is missing; expected type → number"
        )
    matrix: dict[str, float] = {}
    vector: dict[str, float] = {}
    for key in peaks:
        data_type = (
            key.removeprefix("vector_").removeprefix("matrix_").replace("xf32", "tf32")
        )
        rates = vector if key.startswith("vector_") else matrix
        rates[data_type] = _number(peaks, key, where)
    return DevicePeaks(
        name=str(entry.get("name", _UNNAMED_DEVICE)),
        matrix=matrix,
        vector=vector,
        memory=_number(entry, "mem_bw_gbps", where),
        memory_gb=_number(table=entry, key="memory_gb", where=where, default=0),
        source=where,
    )


def _number(
    table: Mapping[str, Any], key: str, where: str, default: float | None = None
) -> float:
    """Return a positive number of a table, or the default where it is missing."""
    value = table.get(key, default)
    if default is not None and value == default:
        return float(default)
    problem = f"{where}: {key} is {value!r}; expected a positive number"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(problem)
    if not 0 < value < _LARGEST_NUMBER:
        raise UsageError(problem)
    return float(value)
