"""The peaks of GPUs: operations a second by engine and data type, bandwidth of memory and link.

The built-in numbers are in `device_peaks.toml`, each with its datasheet. A user's file has the same
form, or is a JSON description of an architecture as TraceLens reads it.
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

#: The recorded memory size of a device may differ from the listed size by this share.
_MEMORY_TOLERANCE: Final = 0.06
_KNOWN_PEAKS_FILE: Final = "device_peaks.toml"
#: Types in which the tensor cores of a GeForce run at half the rate of their architecture.
_HALVED_TYPES: Final = frozenset({"tf32", "bf16", "fp16", "fp8"})
#: The keys that a device in a user's file may have.
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
#: The keys that a device in the built-in file may have besides.
_BUILTIN_KEYS: Final = frozenset({"source", "partitions", "like"})
_UNNAMED_DEVICE: Final = "your device"
#: Larger figures of a device are mistakes.
_LARGEST_NUMBER: Final = 1e9
_BYTES_IN_KILOBYTE: Final = 1024
#: A device name that tells the architecture but not the product.
_GENERIC_NAME: Final = re.compile(r"compute capability|\bgfx\d")


class Peak(NamedTuple):
    """The peak of an engine for a data type."""

    tera_operations: float  #: 10^12 operations a second
    data_type: str  #: the type that the engine computes in, which may be wider than the data type


@dataclass(frozen=True)
class DevicePeaks:
    """The peaks of one device."""

    name: str  #: the product
    #: 10^12 operations a second of the matrix engine, by data type
    matrix: Mapping[str, float]
    #: 10^12 operations a second of the vector engine, by data type
    vector: Mapping[str, float]
    memory: float  #: bandwidth of device memory, 10^9 bytes a second
    #: bandwidth to the host in one direction, 10^9 bytes a second; None: unknown
    link: float | None = None
    names: tuple[str, ...] = ()  #: the names in traces; `*` stands for any characters
    units: int = 0  #: number of compute units (multiprocessors); 0: not known
    warp: int = 0  #: threads of a warp or wave; 0: not known
    memory_gb: float = 0.0  #: size of the device memory, 10^9 bytes; 0: not known
    cache: float = 0.0  #: size of the last-level cache, 10^6 bytes; 0: not known
    #: True if a device in a trace may be a partition of the product
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
        """Return the peaks of a partition with a number of compute units.

        Rates and memory bandwidth shrink with the units; the link stays as fast as it is.
        """
        share = units / self.units
        return replace(
            self,
            name=f"{self.name}, {units} of {self.units} units",
            matrix=_scaled_peaks(self.matrix, share),
            vector=_scaled_peaks(self.vector, share),
            memory=self.memory * share,
            units=units,
        )


def _scaled_peaks(peaks: Mapping[str, float], factor: float) -> dict[str, float]:
    return {data_type: peak * factor for data_type, peak in peaks.items()}


@lru_cache(maxsize=1)
def builtin_peaks() -> tuple[DevicePeaks, ...]:
    """Return the devices of the built-in file.

    An entry with `like = NAME` has the values of the earlier entry NAME unless it gives its own.
    """
    known_peaks = _known_peaks()
    devices = []
    entries: dict[str, dict[str, Any]] = {}
    for name, entry in known_peaks["device"].items():
        similar_entry = entries.get(entry.get("like"), {})
        entries[name] = {**similar_entry, **entry}
        devices.append(_device(_with_defaults(name, entries[name]), _KNOWN_PEAKS_FILE))
    return tuple(devices)


def _with_defaults(name: str, entry: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of a built-in device, with values from its name and architecture added."""
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
        key: figures[key] for key in figures if key in _KEYS | _BUILTIN_KEYS
    }
    return {**defaults, **known_figures, **entry}


def _version(capability: int) -> str:
    """Return a compute capability as NVIDIA writes it: `9.0` for 90."""
    return f"{capability // 10}.{capability % 10}"


@lru_cache(maxsize=1)
def _known_peaks() -> dict[str, Any]:
    """Return the content of the built-in file."""
    file = resources.files(__package__ or "").joinpath(_KNOWN_PEAKS_FILE)
    return tomllib.loads(file.read_text("utf-8"))


def _product_figures(name: str) -> dict[str, float]:
    """Return the figures of a product from all entries that its name begins with.

    A longer beginning replaces figures of a shorter one.
    """
    products = _known_peaks()["product"]
    figures: dict[str, float] = {}
    for beginning in sorted(products, key=len):
        if name.startswith(beginning):
            figures.update(products[beginning])
    return figures


def capability_of(name: str) -> int:
    """Return ten times NVIDIA's compute capability of a product: 90 for an H100.

    0: not known, or the product is another maker's.
    """
    return int(_product_figures(name).get("capability", 0))


class PeerLinks(NamedTuple):
    """The bandwidth of a GPU to the others in its machine, bytes a ns; 0: not known."""

    to_one_peer: float
    to_all_peers: float


def peer_links_of(name: str) -> PeerLinks:
    """Return the bandwidth of a product to the other GPUs in its machine."""
    figures = _product_figures(name)
    return PeerLinks(
        to_one_peer=float(figures.get("peer", 0)),
        to_all_peers=float(figures.get("peers", 0)),
    )


def shared_memory_of(capability: int) -> int:
    """Return the bytes of shared memory of a multiprocessor; 0: not known."""
    kilobytes = _known_peaks()["shared_memory"].get(str(capability), 0)
    return _BYTES_IN_KILOBYTE * int(kilobytes)


@lru_cache(maxsize=1)
def _graphics_cards() -> dict[str, DevicePeaks | None]:
    """Return the computed peaks of graphics cards, by their names in lower case.

    The built-in file lists cards as `NAME = units, MHz, GB/s`, separated by semicolons.
    """
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
    """Return the peaks that follow from clock and compute units; None if a figure is not known.

    Args:
        name: the name of the product.
        architecture: NVIDIA's compute capability such as `9.0`, or a name such as `RDNA3`.
        units: number of compute units.
        clock_hz: clock of the compute units.
        bandwidth: bandwidth of the memory, bytes a second.
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
        vector=_scaled_peaks(rates["vector"], scale),
        memory=bandwidth / 1e9,
        link=rates["link"],
        units=units,
        cache=float(_product_figures(name).get("cache", 0)),
        source=f"computed: {units} units, {clock_hz / 1e6:.0f} MHz, architecture {architecture}",
    )


def find_peaks(
    name: str, *, units: int = 0, warp: int = 0, memory_bytes: int = 0
) -> DevicePeaks | None:
    """Return the peaks of a device in a trace; None for an unknown device.

    The name decides. If it does not tell the product, the sizes of the device do.

    Args:
        name: the name that the profiler recorded; it may be empty or too general.
        units: number of compute units; 0: not recorded.
        warp: threads of a warp; 0: not recorded.
        memory_bytes: size of the memory; 0: not recorded.
    """
    product_name = name.split(" MIG ")[0].strip()
    is_mig_slice = product_name != name.strip()
    for device in builtin_peaks():
        if _has_name(device, product_name):
            may_be_part = device.partitions or is_mig_slice
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


def _has_name(device: DevicePeaks, name: str) -> bool:
    """Return whether traces use a name for a device."""
    return any(fnmatchcase(name.lower(), pattern.lower()) for pattern in device.names)


def _has_memory(device: DevicePeaks, memory_bytes: int) -> bool:
    """Return whether the known memory size of a device is about a number of bytes."""
    difference = abs(memory_bytes / 1e9 - device.memory_gb)
    return device.memory_gb > 0 and difference <= _MEMORY_TOLERANCE * device.memory_gb


def peaks_of_devices(
    trace: Trace, given_peaks: DevicePeaks | None = None
) -> dict[int, DevicePeaks | None]:
    """Return the peaks of each device that did work, by its number; None for an unknown device.

    Args:
        trace: the trace, which describes its devices.
        given_peaks: peaks to use for all devices instead; None: the peaks of each device.
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
    """Return the listed peaks of a device, or else computed ones; None if neither is possible."""
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
    """Return the product of each device whose recorded name does not tell the product.

    JAX names an AMD GPU only by its architecture; compute units and memory tell the product.
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
    """Return the GPU model of each device; empty if all devices are of one model.

    The name of the peaks is the model, so all devices are of one model if a user gives the peaks.
    The model of a device without known peaks is its name in the trace.
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
    """Return the peaks in a user's file, or the peaks of a known device.

    Args:
        path: a file in the form of `device_peaks.toml` or of TraceLens's JSON; or the name of a
            built-in device, such as `H100 SXM`.

    Raises:
        UsageError: the path is neither such a file nor the name of a known device.
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
    """Return the only device in a user's file.

    The file contains it as `[[device]]`, as `[device.NAME]` like the built-in file, or its keys
    stand at the top level.
    """
    if "device" not in document:
        return document
    devices = document["device"]
    if isinstance(devices, dict):
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
    """Return the peaks in the entry of a file.

    Args:
        entry: the parsed entry.
        where: the name of the file for messages.

    Raises:
        UsageError: something is missing, unknown or of the wrong type.
    """
    if not isinstance(entry, dict):
        raise UsageError(
            f"{where}: expected a [[device]] with the keys {', '.join(sorted(_KEYS))}"
        )
    for unknown in sorted(set(entry) - _KEYS - _BUILTIN_KEYS):
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
    """Return the rates of an engine by data type; empty if the entry has none."""
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
    """Return the peaks in a JSON description of TraceLens.

    Its keys are `name`, `mem_bw_gbps`, `memory_gb` and `max_achievable_tflops`. The last one has
    the keys `matrix_TYPE` and `vector_TYPE`.
    """
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
    """Return a number of a table, or the default if it is missing.

    Raises:
        UsageError: the value is not a positive number.
    """
    value = table.get(key, default)
    if default is not None and value == default:
        return float(default)
    problem = f"{where}: {key} is {value!r}; expected a positive number"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(problem)
    if not 0 < value < _LARGEST_NUMBER:
        raise UsageError(problem)
    return float(value)
