"""Protobuf messages without generated classes: lists of them as columns, single ones as fields.

`decode` takes `{1: message, 1: message, …}`, as Nsight's reports store events and threads, and
makes a row of each. A `MessagePlan` says which fields of which messages become columns. Python
decodes the messages in step, a field of all of them at a time, with numpy; the compiled twin
(`_native.c`) decodes one after the other. Both give the same result on every input.

Rules, beyond those of protobuf: the last of several values counts, but a message may hold each
message that is read only once; a field with another wire type than expected is one that is not
known; groups are refused; nesting is as deep as the plan and no deeper.
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

VARINT = 0
FIXED64 = 1
BYTES = 2
FIXED32 = 5
#: Fields from here on are taken together when those that are not known are counted.
MOST_FIELDS = 128
#: More messages are in no list of a report; each takes a row of all columns.
MOST_ROWS = 1 << 17
_LIST_TAG = 0x0A
_TAG_LIMIT = 1 << 32
#: What a field becomes, if not the column of this number.
_UNKNOWN = -1
_IGNORED = -2
_CHILDREN = 1000
_TEXTS = 2000
#: Of fewer messages than this, one after the other is decoded.
_FEW = 24
_PADDING = b"\0" * 32


class DamagedMessageError(ValueError):
    """A message is no protobuf, or breaks the rules above."""


@dataclass(frozen=True)
class Message:
    """A kind of message: which of its fields are read.

    `numbers` and `texts` become columns of these names, of a text where it is and how long.
    """

    name: str
    numbers: Mapping[int, str] = field(default_factory=dict)
    texts: Mapping[int, str] = field(default_factory=dict)
    messages: Mapping[int, Message] = field(default_factory=dict)
    #: fields that are known and not needed
    ignored: frozenset[int] = frozenset()
    #: True if other fields are counted
    counted: bool = False


class Decoded(NamedTuple):
    """The rows of a list of messages."""

    #: the columns, each a row of this array, `MISSING` where there is no value; (columns, rows)
    values: Int64Array
    #: (number of the message in the plan, field) → how often a field was there that is not known
    unknown: dict[tuple[int, int], int]


class MessagePlan:
    """The fields that become columns, for the messages of a list.

    Attributes: `messages`, a message before those within it; `columns`, name → number.
    """

    def __init__(self, root: Message) -> None:
        self.messages: list[Message] = [root]
        self.columns: dict[str, int] = {}
        rows = []
        for message in self.messages:  # grows as it goes
            actions = np.full(MOST_FIELDS, _UNKNOWN, dtype=np.int16)
            actions[list(message.ignored)] = _IGNORED
            for number, name in message.numbers.items():
                actions[number] = self._add_column(name)
            for number, name in message.texts.items():
                actions[number] = _TEXTS + self._add_column(name)
                self._add_column(_length_of(name))
            for number, inner in message.messages.items():
                actions[number] = _CHILDREN + len(self.messages)
                self.messages.append(inner)
            rows.append(actions)
        self.actions: npt.NDArray[np.int16] = np.array(rows)

    def _add_column(self, name: str) -> int:
        self.columns[name] = len(self.columns)
        return self.columns[name]

    @cached_property
    def action_bytes(self) -> bytes:
        """The actions as the compiled decoder takes them."""
        return self.actions.tobytes()

    @cached_property
    def is_counted(self) -> npt.NDArray[np.bool_]:
        """True for messages whose unknown fields are counted."""
        return np.array([message.counted for message in self.messages])

    def column(self, decoded: Decoded, name: str) -> Int64Array:
        """The column of a name."""
        column: Int64Array = decoded.values[self.columns[name]]
        return column

    def spans(self, decoded: Decoded, name: str) -> tuple[Int64Array, Int64Array]:
        """Where each text of a column begins, `MISSING` where there is none; and its length."""
        return self.column(decoded, name), self.column(decoded, _length_of(name))


def _length_of(name: str) -> str:
    return f"{name}, length"


def decode(data: bytes, plan: MessagePlan) -> Decoded:
    """Decode a length and a list of messages, which fill the data.

    Raises DamagedMessageError.
    """
    native = compiled_decoder()
    if native is None:
        return decode_in_python(data, plan)
    answer = native.decode(
        data, plan.action_bytes, MOST_FIELDS, len(plan.columns), MISSING, MOST_ROWS
    )
    if answer is None:
        raise DamagedMessageError
    rows, columns, unknown = answer
    all_values = np.frombuffer(columns, dtype=np.int64)
    values = all_values.reshape(len(plan.columns), rows)
    counts = np.frombuffer(unknown, dtype=np.int64)
    return Decoded(values, _counted(plan, counts))


def decode_in_python(data: bytes, plan: MessagePlan) -> Decoded:
    """Decode as `decode` does, without compiled code."""
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
    return Decoded(values, _counted(plan, decoder.unknown))


def _counted(plan: MessagePlan, counts: Int64Array) -> dict[tuple[int, int], int]:
    unknown = {}
    for place in np.flatnonzero(counts).tolist():
        message, number = divmod(place, MOST_FIELDS)
        if plan.is_counted[message]:
            unknown[message, number] = int(counts[place])
    return unknown


def _list_items(data: bytes) -> tuple[list[int], list[int]]:
    """Where each message of a list begins and ends."""
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
    """A number, modulo 2**64, and where it ends."""
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
    """A field of a single message: its value, or where its bytes are."""

    number: int
    wire_type: int
    value: int  #: of a number; of bytes where they begin
    end: int  #: where the field ends


def signed(value: int) -> int:
    """Return the 64-bit number that an unsigned one stands for."""
    if value >> 63:
        return value - (1 << 64)
    return value


def _one(number: int) -> Int64Array:
    return np.array([number], dtype=np.int64)


def fields(data: bytes, start: int, end: int) -> Iterator[MessageField]:
    """The fields of a message that lies at a place of the data.

    Raises DamagedMessageError.
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
    """Messages of one depth, each (m,)."""

    messages: Int64Array  #: their numbers in the plan
    rows: Int64Array  #: the rows that they are part of
    starts: Int64Array
    ends: Int64Array

    def of(self, chosen: npt.NDArray[np.bool_] | Int64Array) -> _Level:
        """Select messages."""
        return _Level(*(column[chosen] for column in self))


class _Decoder:
    """Decodes the messages of a list depth by depth, filling `values`."""

    def __init__(self, data: bytes, plan: MessagePlan, values: Int64Array) -> None:
        padded = data + _PADDING
        #: the eight bytes from each place on
        self._words: _Unsigned = np.ndarray(len(data) + 25, "<u8", padded, strides=(1,))
        self._data = data
        self._actions = plan.actions
        self._values = values
        self.unknown = np.zeros(plan.actions.size, dtype=np.int64)
        self._found: list[_Level] = []

    def decode_level(self, level: _Level) -> _Level:
        """Decode messages of one depth; those within them."""
        self._found = []
        while True:
            is_active = level.starts < level.ends
            if not is_active.all():
                level = level.of(is_active)
            if len(level.rows) < _FEW:
                break
            level = self._decode_step(level)
        for message, row, start, end in zip(
            *(column.tolist() for column in level), strict=True
        ):
            self._decode_one(message=message, row=row, start=start, end=end)
        if not self._found:
            return level.of(np.zeros(len(level.rows), dtype=bool))
        inner = _Level(
            *(np.concatenate(columns) for columns in zip(*self._found, strict=True))
        )
        keys = inner.rows * len(self._actions) + inner.messages
        if len(np.unique(keys)) != len(keys):
            raise DamagedMessageError
        return inner

    def _decode_step(self, level: _Level) -> _Level:
        """Decode the next field of each message; the messages with what is left of them."""
        tags, positions = self._varints(level.starts)
        if int(tags.max()) >= _TAG_LIMIT or int(tags.min()) < 8:
            raise DamagedMessageError
        small_tags = tags.astype(np.int64)
        wire_types = small_tags & 7
        numbers = np.minimum(small_tags >> 3, MOST_FIELDS - 1)
        if (positions > level.ends).any():
            raise DamagedMessageError
        values, behind = self._varints(positions)
        is_varint = wire_types == VARINT
        is_bytes = wire_types == BYTES
        is_fixed = ~(is_varint | is_bytes)
        if is_fixed.any():
            is_wide = wire_types == FIXED64
            is_known = is_wide | (wire_types == FIXED32)
            if not is_known[is_fixed].all():
                raise DamagedMessageError
            width = np.where(is_wide, 8, 4)
            behind = np.where(is_fixed, positions + width, behind)
        if (behind > level.ends).any():
            raise DamagedMessageError
        room = (level.ends - behind).astype(np.uint64)
        if (is_bytes & (values > room)).any():
            raise DamagedMessageError
        next_starts = behind + np.where(is_bytes, values, 0).astype(np.int64)
        self._take_fields(
            level=level,
            numbers=numbers,
            is_varint=is_varint,
            is_bytes=is_bytes,
            values=values,
            behind=behind,
            next_starts=next_starts,
        )
        return level._replace(starts=next_starts)

    def _take_fields(
        self,
        level: _Level,
        numbers: Int64Array,
        is_varint: npt.NDArray[np.bool_],
        is_bytes: npt.NDArray[np.bool_],
        values: _Unsigned,
        behind: Int64Array,
        next_starts: Int64Array,
    ) -> None:
        """Put a field of each message where the plan has it."""
        actions = self._actions[level.messages, numbers].astype(np.int64)
        is_number = (actions >= 0) & (actions < _CHILDREN) & is_varint
        columns = actions[is_number]
        rows = level.rows[is_number]
        self._values[columns, rows] = values[is_number].view(np.int64)
        is_taken = is_number | (actions == _IGNORED)
        if is_bytes.any():
            is_text = (actions >= _TEXTS) & is_bytes
            columns = actions[is_text] - _TEXTS
            rows = level.rows[is_text]
            starts = behind[is_text]
            self._values[columns, rows] = starts
            self._values[columns + 1, rows] = next_starts[is_text] - starts
            is_child = (actions >= _CHILDREN) & (actions < _TEXTS) & is_bytes
            if is_child.any():
                children = _Level(
                    messages=actions - _CHILDREN,
                    rows=level.rows,
                    starts=behind,
                    ends=next_starts,
                )
                self._found.append(children.of(is_child))
            is_taken |= is_text | is_child
        if not is_taken.all():
            is_unknown = ~is_taken
            first_place = level.messages[is_unknown] * MOST_FIELDS
            places = first_place + numbers[is_unknown]
            self.unknown += np.bincount(places, minlength=len(self.unknown))

    def _varints(self, positions: Int64Array) -> tuple[_Unsigned, Int64Array]:
        """The numbers at some places, and where each ends; that may be behind its message."""
        words = self._words[positions]
        stops = ~words & _STOP_BITS
        # The lowest stop bit ends the number: `lowest - 1` are the bits before it.
        lowest = stops & (~stops + _ONE)
        lengths = (((lowest >> _SEVEN) * _BYTE_NUMBERS) >> _FIFTY_SIX).astype(
            np.int64
        ) + 1
        values = words & (lowest - _ONE) & ~_STOP_BITS
        # Sevens of bits move together: 8 × 7, 4 × 14, 2 × 28, 1 × 56.
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
        """Decode the fields of one message."""
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
                child = _Level(
                    messages=_one(action - _CHILDREN),
                    rows=_one(row),
                    starts=_one(part.value),
                    ends=_one(part.end),
                )
                self._found.append(child)
            elif action != _IGNORED:
                place = message * MOST_FIELDS + number
                self.unknown[place] += 1


_ONE = np.uint64(1)
_SEVEN = np.uint64(7)
_EIGHT = np.uint64(8)
_FIFTY_SIX = np.uint64(56)
_SIXTY_THREE = np.uint64(63)
_BYTE = np.uint64(0xFF)
_STOP_BIT = np.uint64(0x80)
_SEVEN_BITS = np.uint64(0x7F)
_STOP_BITS = np.uint64(0x8080808080808080)
#: 2**(8 * n) times this has n in its highest byte.
_BYTE_NUMBERS = np.uint64(0x0001020304050607)
_SQUEEZES = tuple(
    (np.uint64(low), np.uint64(high), np.uint64(shift))
    for low, high, shift in (
        (0x007F007F007F007F, 0x7F007F007F007F00, 1),
        (0x00003FFF00003FFF, 0x3FFF00003FFF0000, 2),
        (0x000000000FFFFFFF, 0x0FFFFFFF00000000, 4),
    )
)
