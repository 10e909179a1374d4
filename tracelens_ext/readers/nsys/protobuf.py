"""Decodes Protocol Buffers messages without generated classes.

`decode` makes a table of a list of messages, `{1: message, 1: message, …}`, which is how reports of
Nsight Systems store events and threads: each message becomes a row. A `MessagePlan` says which
fields, also of nested messages, become columns. `fields` yields the fields of a single message.

There are two implementations with the same result for every input. Compiled code (`_native.c`)
decodes one message after the other. Python decodes the next field of all messages together, with
numpy.

Rules beyond those of Protocol Buffers:

* If a field has several values, the last one counts. A nested message that is read may occur only
  once in its message.
* A field with another wire type than the plan expects is treated as unknown.
* Groups are refused.
* Only the nested messages that the plan names are decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracelens_ext.readers.nsys.native import compiled_decoder
from tracelens_ext.readers.tables import MISSING
from tracelens_ext.trace import Int64Array

_Unsigned = npt.NDArray[np.uint64]

#: Wire types; `BYTES` are texts and nested messages.
VARINT = 0
FIXED64 = 1
BYTES = 2
FIXED32 = 5
#: Unknown fields with the number MOST_FIELDS - 1 and all above it are counted together.
MOST_FIELDS = 128
#: A list with more messages is damaged. Each message takes a row of all columns in memory.
MOST_ROWS = 1 << 17
#: Tag of an item of a list: field 1, wire type `BYTES`.
_LIST_TAG = 0x0A
_TAG_LIMIT = 1 << 32
#: Actions, which say what is done with a field. From 0 on, the action is the column for a number.
#: From `_CHILDREN` on, it is this constant plus the index of a nested message in the plan. From
#: `_TEXTS` on, it is this constant plus the column for the position of a text.
_UNKNOWN = -1
_IGNORED = -2
_CHILDREN = 1000
_TEXTS = 2000
#: Fewer messages than this are decoded one after the other: numpy would be slower.
_FEW = 24
_PADDING = b"\0" * 32


class DamagedMessageError(ValueError):
    """A message is not valid, or breaks the rules of this module."""


@dataclass(frozen=True)
class Message:
    """A type of message, and the fields of it that are read."""

    name: str
    #: number of a field with a whole number → name of its column
    numbers: Mapping[int, str] = field(default_factory=dict)
    #: number of a field with a text → name of its two columns, for its position and its length
    texts: Mapping[int, str] = field(default_factory=dict)
    #: number of a field with a nested message → the type of that message
    messages: Mapping[int, Message] = field(default_factory=dict)
    #: numbers of fields whose meaning is known, but which are not needed
    ignored: frozenset[int] = frozenset()
    #: True if all further fields are counted, so that the user learns of them
    counted: bool = False


class Decoded(NamedTuple):
    """A decoded list of messages: a table with a row for each message."""

    values: Int64Array  #: shape (columns, rows); `MISSING` where a message has no value
    #: index of the message in the plan, number of a field → number of occurrences of that field,
    #: for fields that are unknown
    unknown: dict[tuple[int, int], int]


class MessagePlan:
    """Says which fields of the messages of a list become columns.

    Args:
        root: the type of the messages.

    Attributes:
        messages: the types of all messages; the type of a message precedes those nested in it.
        columns: name of a column → its index.
        actions: what is done with each field of each type, shape (messages, MOST_FIELDS).
    """

    def __init__(self, root: Message) -> None:
        self.messages: list[Message] = [root]
        self.columns: dict[str, int] = {}
        rows = []
        for message in self.messages:  # nested messages are appended meanwhile
            actions = np.full(MOST_FIELDS, _UNKNOWN, dtype=np.int16)
            actions[list(message.ignored)] = _IGNORED
            for number, name in message.numbers.items():
                actions[number] = self._add_column(name)
            for number, name in message.texts.items():
                actions[number] = _TEXTS + self._add_column(name)
                self._add_column(_length_of(name))
            for number, nested in message.messages.items():
                actions[number] = _CHILDREN + len(self.messages)
                self.messages.append(nested)
            rows.append(actions)
        self.actions: npt.NDArray[np.int16] = np.array(rows)

    def _add_column(self, name: str) -> int:
        self.columns[name] = len(self.columns)
        return self.columns[name]

    @cached_property
    def action_bytes(self) -> bytes:
        """The actions in the form that the compiled decoder expects."""
        return self.actions.tobytes()

    @cached_property
    def is_counted(self) -> npt.NDArray[np.bool_]:
        """For each type of message, whether its unknown fields are counted."""
        return np.array([message.counted for message in self.messages])

    def column(self, decoded: Decoded, name: str) -> Int64Array:
        """Return a column by its name, shape (rows,)."""
        column: Int64Array = decoded.values[self.columns[name]]
        return column

    def spans(self, decoded: Decoded, name: str) -> tuple[Int64Array, Int64Array]:
        """Return the first byte and the length of each text of a column, each of shape (rows,).

        The first byte is `MISSING` for a message without this text.
        """
        return self.column(decoded, name), self.column(decoded, _length_of(name))


def _length_of(name: str) -> str:
    """Return the name of the column with the lengths of the texts of a column."""
    return f"{name}, length"


def decode(data: bytes, plan: MessagePlan) -> Decoded:
    """Decode a list of messages.

    Args:
        data: the length of the list, and the list; nothing may follow.
        plan: says which fields become columns.

    Raises:
        DamagedMessageError: a message is damaged, or the list does not have the stated length.
    """
    native = compiled_decoder()
    if native is None:
        return decode_in_python(data, plan)
    decoded = native.decode(
        data, plan.action_bytes, MOST_FIELDS, len(plan.columns), MISSING, MOST_ROWS
    )
    if decoded is None:
        raise DamagedMessageError
    row_count, columns, unknown_counts = decoded
    all_values = np.frombuffer(columns, dtype=np.int64)
    values = all_values.reshape(len(plan.columns), row_count)
    counts = np.frombuffer(unknown_counts, dtype=np.int64)
    return Decoded(values, _unknown_fields(plan, counts))


def decode_in_python(data: bytes, plan: MessagePlan) -> Decoded:
    """Decode a list of messages without compiled code; otherwise as `decode`."""
    starts, ends = _list_items(data)
    values = np.full((len(plan.columns), len(starts)), MISSING, dtype=np.int64)
    decoder = _Decoder(data=data, plan=plan, values=values)
    rows = np.arange(len(starts), dtype=np.int64)
    level = _Level(
        messages=np.zeros_like(rows),
        rows=rows,
        starts=np.array(starts, np.int64),
        ends=np.array(ends, np.int64),
    )
    while len(level.rows):
        level = decoder.decode_level(level)
    return Decoded(values, _unknown_fields(plan, decoder.unknown_counts))


def _unknown_fields(
    plan: MessagePlan, counts: Int64Array
) -> dict[tuple[int, int], int]:
    """Return the unknown fields of messages whose unknown fields are counted.

    Args:
        plan: the types of messages.
        counts: the number of occurrences of field f of message m, at the index
            m * MOST_FIELDS + f.
    """
    unknown = {}
    for index in np.flatnonzero(counts).tolist():
        message, number = divmod(index, MOST_FIELDS)
        if plan.is_counted[message]:
            unknown[message, number] = int(counts[index])
    return unknown


def _list_items(data: bytes) -> tuple[list[int], list[int]]:
    """Return the first byte of each message of a list, and the byte after each message."""
    length, position = varint(data, 0, len(data))
    end = len(data)
    if length != end - position:
        raise DamagedMessageError
    starts: list[int] = []
    ends: list[int] = []
    while position < end:
        if data[position] != _LIST_TAG:
            raise DamagedMessageError
        if len(starts) == MOST_ROWS:
            raise DamagedMessageError
        length, position = varint(data, position + 1, end)
        if length > end - position:
            raise DamagedMessageError
        starts.append(position)
        position += length
        ends.append(position)
    return starts, ends


def varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Return the varint at a position, modulo 2**64, and the position after it.

    Raises:
        DamagedMessageError: the varint is too long, or does not end before `end`.
    """
    value = shift = 0
    while position < end and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        is_last = byte < 0x80
        if is_last:
            number = value & 0xFFFFFFFFFFFFFFFF
            return number, position
        shift += 7
    raise DamagedMessageError


class MessageField(NamedTuple):
    """A field of a single message."""

    number: int
    wire_type: int
    value: int  #: a varint; for other wire types, the first byte of the value
    end: int  #: byte after the field


def signed(value: int) -> int:
    """Return an unsigned 64-bit number as the signed number with the same bits."""
    if value >> 63:
        return value - (1 << 64)
    return value


def _array_of(number: int) -> Int64Array:
    return np.array([number], dtype=np.int64)


def fields(data: bytes, start: int, end: int) -> Iterator[MessageField]:
    """Yield the fields of the message in a range of bytes.

    Raises:
        DamagedMessageError: the message is damaged.
    """
    position = start
    while position < end:
        tag, position = varint(data, position, end)
        if tag >= _TAG_LIMIT or tag < 8:
            raise DamagedMessageError
        wire_type = tag & 7
        value = position
        if wire_type == VARINT:
            value, position = varint(data, position, end)
        elif wire_type == BYTES:
            length, value = varint(data, position, end)
            position = value + length
        elif wire_type == FIXED64:
            position += 8
        elif wire_type == FIXED32:
            position += 4
        else:
            raise DamagedMessageError
        if position > end:
            raise DamagedMessageError
        yield MessageField(
            number=tag >> 3, wire_type=wire_type, value=value, end=position
        )


class _Level(NamedTuple):
    """The m messages at one depth of nesting; each array has the shape (m,)."""

    messages: Int64Array  #: index of the type of the message in the plan
    rows: Int64Array  #: row of the list item that contains the message
    starts: Int64Array  #: first byte that is not decoded yet
    ends: Int64Array  #: byte after the message

    def selected(self, is_selected: npt.NDArray[np.bool_]) -> _Level:
        """Return some of the messages."""
        return _Level(*(column[is_selected] for column in self))


class _Decoder:
    """Decodes the messages of a list, one depth of nesting after the other.

    Args:
        data: the encoded list.
        plan: says which fields become columns.
        values: the table, in which the decoder fills in the values that it finds.

    Attributes:
        unknown_counts: as `_unknown_fields` takes it.
    """

    def __init__(self, data: bytes, plan: MessagePlan, values: Int64Array) -> None:
        padded = data + _PADDING
        # Overlapping views: `_words[i]` is the eight bytes from byte i on, without a copy.
        self._words: _Unsigned = np.ndarray(len(data) + 25, "<u8", padded, strides=(1,))
        self._data = data
        self._actions = plan.actions
        self._values = values
        self.unknown_counts = np.zeros(plan.actions.size, dtype=np.int64)
        self._nested: list[_Level] = []

    def decode_level(self, level: _Level) -> _Level:
        """Decode the messages at one depth; return the messages that are nested in them."""
        self._nested = []
        while True:
            is_unfinished = level.starts < level.ends
            if not is_unfinished.all():
                level = level.selected(is_unfinished)
            if len(level.rows) < _FEW:
                break
            level = self._decode_next_fields(level)
        for message, row, start, end in zip(
            *(column.tolist() for column in level), strict=True
        ):
            self._decode_one(message=message, row=row, start=start, end=end)
        if not self._nested:
            return level.selected(np.zeros(len(level.rows), dtype=bool))
        nested = _Level(
            *(np.concatenate(columns) for columns in zip(*self._nested, strict=True))
        )
        # A list item may contain each type of nested message only once.
        keys = nested.rows * len(self._actions) + nested.messages
        if len(np.unique(keys)) != len(keys):
            raise DamagedMessageError
        return nested

    def _decode_next_fields(self, level: _Level) -> _Level:
        """Decode the next field of each message; return the messages without these fields."""
        tags, positions = self._varints(level.starts)
        if int(tags.max()) >= _TAG_LIMIT or int(tags.min()) < 8:
            raise DamagedMessageError
        small_tags = tags.astype(np.int64)
        wire_types = small_tags & 7
        numbers = np.minimum(small_tags >> 3, MOST_FIELDS - 1)
        if (positions > level.ends).any():
            raise DamagedMessageError
        # The value of a varint, or the length of bytes; `contents` is the byte after it.
        values, contents = self._varints(positions)
        is_varint = wire_types == VARINT
        is_bytes = wire_types == BYTES
        is_fixed = ~(is_varint | is_bytes)
        if is_fixed.any():
            is_wide = wire_types == FIXED64
            is_valid = is_wide | (wire_types == FIXED32)
            if not is_valid[is_fixed].all():
                raise DamagedMessageError
            width = np.where(is_wide, 8, 4)
            contents = np.where(is_fixed, positions + width, contents)
        if (contents > level.ends).any():
            raise DamagedMessageError
        remaining_bytes = (level.ends - contents).astype(np.uint64)
        if (is_bytes & (values > remaining_bytes)).any():
            raise DamagedMessageError
        next_starts = contents + np.where(is_bytes, values, 0).astype(np.int64)
        next_fields = _NextFields(
            numbers=numbers,
            is_varint=is_varint,
            is_bytes=is_bytes,
            values=values,
            contents=contents,
            ends=next_starts,
        )
        self._store(level, next_fields)
        return level._replace(starts=next_starts)

    def _store(self, level: _Level, next_fields: _NextFields) -> None:
        """Store a field of each message as the plan says: in the table, or for the next depth."""
        is_bytes = next_fields.is_bytes
        contents = next_fields.contents
        actions = self._actions[level.messages, next_fields.numbers].astype(np.int64)
        is_number = (actions >= 0) & (actions < _CHILDREN) & next_fields.is_varint
        columns = actions[is_number]
        rows = level.rows[is_number]
        self._values[columns, rows] = next_fields.values[is_number].view(np.int64)
        is_known = is_number | (actions == _IGNORED)
        if is_bytes.any():
            is_text = (actions >= _TEXTS) & is_bytes
            columns = actions[is_text] - _TEXTS
            rows = level.rows[is_text]
            starts = contents[is_text]
            self._values[columns, rows] = starts
            self._values[columns + 1, rows] = next_fields.ends[is_text] - starts
            is_nested = (actions >= _CHILDREN) & (actions < _TEXTS) & is_bytes
            if is_nested.any():
                nested = _Level(
                    messages=actions - _CHILDREN,
                    rows=level.rows,
                    starts=contents,
                    ends=next_fields.ends,
                )
                self._nested.append(nested.selected(is_nested))
            is_known |= is_text | is_nested
        if not is_known.all():
            is_unknown = ~is_known
            first_index = level.messages[is_unknown] * MOST_FIELDS
            indices = first_index + next_fields.numbers[is_unknown]
            self.unknown_counts += np.bincount(
                indices, minlength=len(self.unknown_counts)
            )

    def _varints(self, positions: Int64Array) -> tuple[_Unsigned, Int64Array]:
        """Decode the varints at some positions; return their values and the positions after them.

        A varint may end beyond its message; the caller checks that.
        """
        words = self._words[positions]
        # The last byte of a varint is the first one whose highest bit is not set.
        stops = ~words & _STOP_BITS
        lowest = stops & (~stops + _ONE)  # isolates the lowest bit that is set
        byte_index = ((lowest >> _SEVEN) * _BYTE_NUMBERS) >> _FIFTY_SIX
        lengths = byte_index.astype(np.int64) + 1
        # Clear the highest bits, and all bits after the varint.
        values = words & (lowest - _ONE) & ~_STOP_BITS
        # The payloads of 7 bits per byte move together: 8 × 7, 4 × 14, 2 × 28, 1 × 56 bits.
        for low, high, shift in _SQUEEZES:
            values = (values & low) | ((values & high) >> shift)
        is_long = stops == 0
        if is_long.any():
            last_word = self._words[positions[is_long] + 8]
            ninth = last_word & _BYTE
            tenth = (last_word >> _EIGHT) & _BYTE
            has_ten = ninth >= _STOP_BIT
            if (has_ten & (tenth >= _STOP_BIT)).any():
                raise DamagedMessageError
            values[is_long] |= (ninth & _SEVEN_BITS) << _FIFTY_SIX
            values[is_long] |= (
                np.where(has_ten, tenth, 0).astype(np.uint64) << _SIXTY_THREE
            )
            lengths[is_long] = 9 + has_ten
        return values, positions + lengths

    def _decode_one(self, message: int, row: int, start: int, end: int) -> None:
        """Decode one message.

        Args:
            message: the index of its type in the plan.
            row: the row of the list item that contains it.
            start: the first byte that is not decoded yet.
            end: the byte after the message.
        """
        actions: Sequence[int] = self._actions[message].tolist()
        for part in fields(self._data, start, end):
            number = min(part.number, MOST_FIELDS - 1)
            action = actions[number]
            is_number = part.wire_type == VARINT and 0 <= action < _CHILDREN
            is_bytes = part.wire_type == BYTES
            if is_number:
                self._values[action, row] = signed(part.value)
            elif is_bytes and action >= _TEXTS:
                column = action - _TEXTS
                self._values[column, row] = part.value
                self._values[column + 1, row] = part.end - part.value
            elif is_bytes and action >= _CHILDREN:
                nested = _Level(
                    messages=_array_of(action - _CHILDREN),
                    rows=_array_of(row),
                    starts=_array_of(part.value),
                    ends=_array_of(part.end),
                )
                self._nested.append(nested)
            elif action != _IGNORED:
                self.unknown_counts[message * MOST_FIELDS + number] += 1


class _NextFields(NamedTuple):
    """A field of each of m messages; each array has the shape (m,)."""

    numbers: Int64Array  #: number of the field, at most MOST_FIELDS - 1
    is_varint: npt.NDArray[np.bool_]
    is_bytes: npt.NDArray[np.bool_]
    values: _Unsigned  #: value of a varint, length of bytes
    contents: Int64Array  #: first byte of the content of bytes
    ends: Int64Array  #: byte after the field


_ONE = np.uint64(1)
_SEVEN = np.uint64(7)
_EIGHT = np.uint64(8)
_FIFTY_SIX = np.uint64(56)
_SIXTY_THREE = np.uint64(63)
_BYTE = np.uint64(0xFF)
_STOP_BIT = np.uint64(0x80)
_SEVEN_BITS = np.uint64(0x7F)
_STOP_BITS = np.uint64(0x8080808080808080)
#: The product of this and 2**(8 * n) has n in its highest byte.
_BYTE_NUMBERS = np.uint64(0x0001020304050607)
#: Steps that move payloads together: mask of the lower halves, mask of the upper halves, and the
#: number of unused bits that the upper halves move down by.
_SQUEEZES = tuple(
    (np.uint64(low), np.uint64(high), np.uint64(shift))
    for low, high, shift in (
        (0x007F007F007F007F, 0x7F007F007F007F00, 1),
        (0x00003FFF00003FFF, 0x3FFF00003FFF0000, 2),
        (0x000000000FFFFFFF, 0x0FFFFFFF00000000, 4),
    )
)
