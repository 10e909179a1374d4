"""Damage to JSON text, the way files get damaged: a token lost, doubled, replaced; a cut; a byte.

Random bytes seldom come further than the first brace. So a text is taken as tokens (strings,
numbers, words, punctuation) and lines, and a few of them are changed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

_TOKEN = re.compile(
    rb'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|\w+|[\[\]{},:]'
)
_NUMBER = re.compile(rb"-?\d")
NUMBERS = (
    b"0",
    b"-1",
    b"1",
    b"1.5",
    b"0.001",
    b"-0.0005",
    b"1e3",
    b"1E-3",
    b"1e400",
    b"-1e400",
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"null",
    b"true",
    b'"12"',
    b'"x"',
    b'""',
    b"[]",
    b"{}",
    b"9223372036854775807",
    b"9223372036854775808",
    b"-9223372036854775808",
    b"4294967296",
    b"18446744073709551616",
    b"1712195495519689.047",
    b"9007199254740993",
    b"1" * 400,
    b"007",
    b"+1",
    b"0x10",
    b".5",
    b"5.",
    b"1,5",
    b"--1",
    b"1e",
    b"-",
)
TEXTS = (
    b'""',
    b'"X"',
    b'"M"',
    b'"s"',
    b'"f"',
    b'"i"',
    b'"B"',
    b'"kernel"',
    b'"cpu_op"',
    b'"gpu_memcpy"',
    b'"cuda_runtime"',
    b'"cudaGraphLaunch"',
    b'"cudaLaunchKernel"',
    b'"user_annotation"',
    b'"ProfilerStep#1"',
    b'"python_function"',
    b'"ac2g"',
    b'"gpu_memset"',
    b'"ncclDevKernel_AllReduce"',
    b'"=1+1"',
    b'"}, {\\"ph\\": \\""',
    b'"\\ud800"',
    b'"\\u0000"',
    b'"a\nb"',
    b'"\xff\xfe"',
    b'"\xc3\xa9"',
    b'"C:\\q"',
    b'"\\',
    b'"',
    b"'a'",
    b"5",
    b"null",
    b'["a"]',
    b'{"a": 1}',
    b'"' + b"x" * 5000 + b'"',
    b'"\x1b[31m"',
    b'"a[/b]"',
)
MEMBERS = (
    b'"ts"',
    b'"dur"',
    b'"ph"',
    b'"cat"',
    b'"name"',
    b'"pid"',
    b'"tid"',
    b'"args"',
    b'"id"',
    b'"correlation"',
    b'"External id"',
    b'"stream"',
    b'"device"',
    b'"Input Dims"',
    b'"bytes"',
    b'"traceEvents"',
    b'"deviceProperties"',
    b'"distributedInfo"',
    b'"Collective name"',
    b'"In msg nelems"',
    b'"Process Group Ranks"',
    b'"Sequence number"',
    b'"Python id"',
    b'"Python parent id"',
    b'"Concrete Inputs"',
    b'"Input type"',
    b'"dtype"',
    b'"Group size"',
)
_INSERTED = (
    b",",
    b"}",
    b"{",
    b"]",
    b"[",
    b":",
    b'"',
    b"\\",
    b"\x00",
    b"\n",
    b"\xef\xbb\xbf",
    b" ",
)


def mutate(data: bytes, rng: random.Random, times: int = 3) -> bytes:
    """A text with up to `times` changes."""
    for _ in range(rng.randint(1, times)):
        data = rng.choice(_CHANGES)(data, rng)
    return data


def _spans(data: bytes) -> list[tuple[int, int]]:
    return [found.span() for found in _TOKEN.finditer(data)]


def _replace_token(data: bytes, rng: random.Random) -> bytes:
    spans = _spans(data)
    if not spans:
        return data + rng.choice(_INSERTED)
    start, end = rng.choice(spans)
    token = data[start:end]
    if token.startswith(b'"'):
        new = rng.choice(MEMBERS if data[end : end + 1] == b":" else TEXTS)
    elif _NUMBER.match(token):
        new = rng.choice(NUMBERS)
    else:
        new = rng.choice((*NUMBERS, *TEXTS, *_INSERTED))
    return data[:start] + new + data[end:]


def _replace_number(data: bytes, rng: random.Random) -> bytes:
    numbers = []
    for start, end in _spans(data):
        if _NUMBER.match(data[start:end]):
            numbers.append((start, end))
    if not numbers:
        return data
    start, end = rng.choice(numbers)
    replacement = rng.choice(NUMBERS)
    if rng.random() < 0.5:
        digits = re.sub(rb"[^\d]", b"", data[start:end])
        near = int(digits[:18]) + rng.randint(-40, 40)
        replacement = str(near).encode()
    return data[:start] + replacement + data[end:]


def _copy_token(data: bytes, rng: random.Random) -> bytes:
    """One token's text in the place of another of its sort."""
    spans = _spans(data)
    if not spans:
        return data
    start, end = rng.choice(spans)
    same = [
        (a, b)
        for a, b in spans
        if data[a : a + 1].isdigit() == data[start : start + 1].isdigit()
    ]
    a, b = rng.choice(same)
    return data[:start] + data[a:b] + data[end:]


def _drop_token(data: bytes, rng: random.Random) -> bytes:
    spans = _spans(data)
    if not spans:
        return data
    start, end = rng.choice(spans)
    return data[:start] + data[end:]


def _double_token(data: bytes, rng: random.Random) -> bytes:
    spans = _spans(data)
    if not spans:
        return data
    start, end = rng.choice(spans)
    return data[:end] + data[start:end] + data[end:]


def _drop_line(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    if lines:
        del lines[rng.randrange(len(lines))]
    return b"".join(lines)


def _double_line(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    if not lines:
        return data
    lines.insert(rng.randrange(len(lines) + 1), rng.choice(lines))
    return b"".join(lines)


def _add_member(data: bytes, rng: random.Random) -> bytes:
    places = [found.end() for found in re.finditer(rb"\{", data)]
    if not places:
        return data
    place = rng.choice(places)
    value = rng.choice((*NUMBERS, *TEXTS))
    return data[:place] + rng.choice(MEMBERS) + b": " + value + b", " + data[place:]


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randint(0, len(data))]


def _insert(data: bytes, rng: random.Random) -> bytes:
    place = rng.randint(0, len(data))
    return data[:place] + rng.choice(_INSERTED) + data[place:]


def _flip(data: bytes, rng: random.Random) -> bytes:
    if not data:
        return data
    place = rng.randrange(len(data))
    return (
        data[:place]
        + bytes([data[place] ^ (1 << rng.randrange(8))])
        + data[place + 1 :]
    )


def _nest(data: bytes, rng: random.Random) -> bytes:
    spans = _spans(data)
    if not spans:
        return data
    start, end = rng.choice(spans)
    depth = rng.choice((1, 3, 200, 3000))
    return data[:start] + b"[" * depth + data[start:end] + b"]" * depth + data[end:]


def _shuffle_lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    if len(lines) > 4:
        inner = lines[2:-2]
        rng.shuffle(inner)
        lines[2:-2] = inner
    return b"".join(lines)


#: Often those that leave most of the text a trace.
_CHANGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _replace_token,
    _replace_token,
    _replace_number,
    _replace_number,
    _replace_number,
    _copy_token,
    _copy_token,
    _drop_token,
    _double_token,
    _drop_line,
    _double_line,
    _add_member,
    _add_member,
    _cut,
    _insert,
    _flip,
    _nest,
    _shuffle_lines,
)
