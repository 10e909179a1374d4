"""Decodes the events in the packets of a Perfetto trace.

Events are begins and ends of slices, instants, GPU work (render stages), and values of GPU
counters. `trace_assembly.py` makes a trace of them.
"""

from __future__ import annotations

import json
import re
import struct
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.readers.builder import Interner, map_distinct_rows
from tracelens_ext.readers.perfetto import packets as packed
from tracelens_ext.readers.perfetto.arguments import (
    INDEX_OF_ARGUMENT,
    NUMBERS_AS_TEXT,
    ValueForm,
)
from tracelens_ext.readers.perfetto.message import (
    Message,
    nested_messages,
    number_in,
    parts_of,
    text_in,
)
from tracelens_ext.readers.perfetto.packets import Sequences
from tracelens_ext.readers.xplane.many_messages import (
    FIELD_SHIFT,
    VARINT,
    WIRE_TYPE,
    Bytes,
    Fields,
    fields_of,
    varints,
)
from tracelens_ext.trace import NONE, Int64Array
from tracelens_ext.trace.lookup import values_at

#: Numbers of fields of `TracePacket`.
_TRACK_EVENT = 11
_COUNTER_EVENT = 52
_STAGE_EVENT = 53
_DESCRIPTOR = 60
#: Fields of packets about an operating system and its processes, or about Chrome.
_FOREIGN = (1, 2, 5, 51)


class _TrackEventField(IntEnum):
    """The fields of `TrackEvent`."""

    CATEGORY_NUMBER = 3
    ANNOTATIONS = 4
    TYPE = 9
    NAME_NUMBER = 10
    TRACK = 11
    CATEGORY = 22
    NAME = 23
    SUBMISSION = 3000  #: PyTorch's own


class _StageField(IntEnum):
    """The fields of `GpuRenderStageEvent`; the last two are PyTorch's own."""

    EVENT_ID = 1
    DURATION = 2
    EXTRA_DATA = 6
    GPU = 11
    QUEUE_NUMBER = 13
    STAGE_NUMBER = 14
    KERNEL_NUMBER = 19
    NAME_NUMBER = 20


class _DescriptorField(IntEnum):
    """The fields of `TrackDescriptor`."""

    UUID = 1
    NAME = 2
    PROCESS = 3
    THREAD = 4
    PARENT = 5
    STATIC_NAME = 10


#: Numbers of fields of `ProcessDescriptor` and `ThreadDescriptor`.
_PROCESS_ID = 1
_PROCESS_NAME = 6
_PROCESS_OF_THREAD = 1
_THREAD_ID = 2
_THREAD_NAME = 5


class _CounterEventField(IntEnum):
    """The fields of `GpuCounterEvent`."""

    COUNTERS = 2
    GPU = 3
    DESCRIPTOR_NUMBER = 4


class _CounterField(IntEnum):
    """The fields of `GpuCounter`."""

    ID = 1
    INT_VALUE = 2
    DOUBLE_VALUE = 3


#: Numbers of fields of `ExtraData`, a pair of name and value.
_EXTRA_NAME = 1
_EXTRA_VALUE = 2
#: The keys of fields of `DebugAnnotation`, as they are encoded: in one byte, or in two.
_NAME_OF_ARGUMENT = 0x52
_NUMBER_OF_NAME = 0x08
_NUMBER_OF_TEXT = (0x88, 1)
#: The keys of fields with whole numbers are below this one.
_END_OF_WHOLE_NUMBERS = 0x28
_SUBMISSION_ID = 1 << 3 | VARINT
#: Types of events: those of `TrackEvent`, then two for the other kinds of packets.
BEGIN = 1
END = 2
INSTANT = 3
STAGE = 4
VALUE = 5


#: The number at the end of the name of a queue.
_NUMBER_AT_END: Final = re.compile(rb"(\d{1,9})\s*$")


class PerfettoTrack(NamedTuple):
    """The description of a track. What it leaves out is that of its parent."""

    parent: int  #: uuid; 0 for none
    name: str
    process: int | None
    process_name: str
    thread: tuple[int, int] | None  #: process and thread


class _GrowingTable:
    """A table of whole numbers to which rows are added."""

    def __init__(self, *names: str) -> None:
        self._column_parts: dict[str, list[Int64Array]] = {}
        for name in names:
            self._column_parts[name] = [np.empty(0, dtype=np.int64)]

    def add(self, **columns: Int64Array) -> None:
        """Add rows; all columns must be given."""
        for name, parts in self._column_parts.items():
            parts.append(columns[name])

    def frame(self) -> pd.DataFrame:
        """Return all rows."""
        columns = {}
        for name, parts in self._column_parts.items():
            columns[name] = np.concatenate(parts)
        return pd.DataFrame(columns)


class Events:
    """Collects the events of a file.

    Attributes:
        count: the number of events so far.
        is_foreign: True if some packets are about an operating system or a browser.
        raw: the bytes of the file.
        texts: the distinct texts, as bytes → their codes.
        tracks: the description of each track, by uuid.
        gpu_threads: process and stream of GPU work and of counters → number.
    """

    def __init__(self, data: Bytes) -> None:
        self._data = data
        self.raw = memoryview(data.data)
        self._sequences = Sequences(data)
        self.texts = self._sequences.texts
        self.count = 0
        self.is_foreign = False
        self.tracks: dict[int, PerfettoTrack] = {}
        self.gpu_threads: Interner[tuple[int | str, int | str]] = Interner()
        self._columns = _GrowingTable(
            "time", "duration", "type", "track", "name", "category"
        )
        self._arguments = _GrowingTable("event", "name", "form", "value")
        self._submissions = _GrowingTable("call", "id")
        self._work_ids = _GrowingTable("work", "id")
        #: code of a text → its index in `ARGUMENT_NAMES`; `NONE` for other texts
        self._argument_of_text = np.empty(0, dtype=np.int64)

    def add_packets(self, packets: Fields, count: int) -> None:
        """Add the events in the packets of a window.

        Args:
            packets: the fields of the packets.
            count: the number of packets.

        Raises:
            MessageError: a packet is damaged. The events of the window are then not complete, but
                those of earlier windows are.
        """
        state, time = self._sequences.read_definitions(packets, count)
        field_numbers = packets.key >> FIELD_SHIFT
        if np.isin(field_numbers, _FOREIGN).any():
            self.is_foreign = True
        for _, descriptor in nested_messages(self.raw, packets, _DESCRIPTOR):
            uuid = number_in(descriptor, _DescriptorField.UUID)
            self.tracks[uuid] = self._track(descriptor)
        packet, start, end = packets.contents(_TRACK_EVENT)
        track_events = fields_of(self._data, start, end)
        self._add_track_events(
            time=time[packet], state=state[packet], fields=track_events
        )
        packet, start, end = packets.contents(_STAGE_EVENT)
        stages = fields_of(self._data, start, end)
        self._add_stages(time=time[packet], state=state[packet], fields=stages)
        for index, event in nested_messages(self.raw, packets, _COUNTER_EVENT):
            self._add_counter_values(int(time[index]), int(state[index]), event)

    def _track(self, descriptor: Message) -> PerfettoTrack:
        """Return the track that a `TrackDescriptor` describes."""
        raw = self.raw
        process = next(parts_of(raw, descriptor, _DescriptorField.PROCESS), None)
        thread = next(parts_of(raw, descriptor, _DescriptorField.THREAD), None)
        own_name = text_in(raw, descriptor, _DescriptorField.NAME)
        static_name = text_in(raw, descriptor, _DescriptorField.STATIC_NAME)
        process_id = None
        process_name = ""
        if process is not None:
            process_id = number_in(process, _PROCESS_ID)
            process_name = text_in(raw, process, _PROCESS_NAME)
        process_and_thread = None
        thread_name = ""
        if thread is not None:
            process_of_thread = number_in(thread, _PROCESS_OF_THREAD)
            process_and_thread = (process_of_thread, number_in(thread, _THREAD_ID))
            thread_name = text_in(raw, thread, _THREAD_NAME)
        return PerfettoTrack(
            parent=number_in(descriptor, _DescriptorField.PARENT),
            name=thread_name or own_name or static_name,
            process=process_id,
            process_name=process_name,
            thread=process_and_thread,
        )

    def _add(
        self,
        *,
        time: Int64Array,
        duration: Int64Array,
        event_type: Int64Array,
        track: Int64Array,
        name: Int64Array,
        category: Int64Array,
    ) -> None:
        """Add m events; the columns are those that `columns` returns."""
        self._columns.add(
            time=time,
            duration=duration,
            type=event_type,
            track=track,
            name=name,
            category=category,
        )
        self.count += len(time)

    def columns(self) -> pd.DataFrame:
        """Return the events as a table.

        Columns: `time` and `duration`, ns; `type`; `track`, a number of `gpu_threads` for GPU work
        and counters, else a uuid; `name` and `category`, codes of `texts`.
        """
        return self._columns.frame()

    def arguments(self) -> pd.DataFrame:
        """Return the arguments of all events as a table.

        Columns: `event`, its row in `columns`; `name`, an index of `ARGUMENT_NAMES`; `form`, a
        `ValueForm`; `value`.
        """
        arguments = self._arguments.frame()
        # A damaged window may have added arguments of events that it did not add.
        return arguments[arguments["event"] < self.count]

    def submissions(self) -> Submissions:
        """Return the GPU work that each call submitted."""
        work = self._work_ids.frame().drop_duplicates("id")
        pairs = self._submissions.frame().merge(work, on="id")
        call = pairs["call"].to_numpy()
        work_of_call = pairs["work"].to_numpy()
        # A damaged window may have added pairs of events that it did not add.
        has_call = call < self.count
        has_work = work_of_call < self.count
        has_events = has_call & has_work
        return Submissions(call=call[has_events], work=work_of_call[has_events])

    def _add_track_events(
        self, time: Int64Array, state: Int64Array, fields: Fields
    ) -> None:
        """Add m `TrackEvent`s.

        Args:
            time: the time of the packet of each event, (m,).
            state: the state of the packet of each event, (m,).
            fields: the fields of the events.
        """
        count = len(time)
        event_type = fields.numbers(_TrackEventField.TYPE, count)
        is_other_type = (event_type < 0) | (event_type > INSTANT)
        event_type[is_other_type] = 0
        track = fields.numbers(_TrackEventField.TRACK, count)
        name = self._sequences.text(fields, _TrackEventField.NAME, count)
        category = self._sequences.text(fields, _TrackEventField.CATEGORY, count)
        name_number = fields.numbers(_TrackEventField.NAME_NUMBER, count)
        category_number = fields.numbers(_TrackEventField.CATEGORY_NUMBER, count)
        rows = np.flatnonzero(event_type != END)
        self._fill_interned(
            codes=name,
            field=packed.NAME,
            text_number=name_number,
            state=state,
            rows=rows,
        )
        self._fill_interned(
            codes=category,
            field=packed.CATEGORY,
            text_number=category_number,
            state=state,
            rows=rows,
        )
        self._add_submissions(fields)
        event, start, end = fields.contents(_TrackEventField.ANNOTATIONS)
        self._add_annotations(event=event, state=state[event], start=start, end=end)
        self._add(
            time=time,
            duration=np.zeros(count, dtype=np.int64),
            event_type=event_type,
            track=self._tracks_of(track, state),
            name=name,
            category=category,
        )

    def _add_submissions(self, fields: Fields) -> None:
        """Keep the ids of submissions that `TrackEvent`s have, before the events are added."""
        event, start, end = fields.contents(_TrackEventField.SUBMISSION)
        if len(event):
            extension = fields_of(self._data, start, end)
            is_id = extension.key == _SUBMISSION_ID
            call = self.count + event[extension.message[is_id]]
            self._submissions.add(call=call, id=extension.value[is_id])

    def _tracks_of(self, track: Int64Array, state: Int64Array) -> Int64Array:
        """Return the track of each event, (m,): its own, or the default track if that is 0."""
        default_track = self._sequences.default_track
        if not default_track:
            return track
        states = range(int(state.max(initial=0)) + 1)
        track_of_state = np.array([default_track.get(number, 0) for number in states])
        return np.where(track == 0, track_of_state[state], track)

    def _fill_interned(
        self,
        codes: Int64Array,
        field: int,
        text_number: Int64Array,
        state: Int64Array,
        rows: Int64Array,
    ) -> None:
        """Set the codes of the texts that events refer to by number, in place.

        Args:
            codes: the codes of the texts of m events, (m,).
            field: the field of `InternedData` that defines the texts.
            text_number: the number by which each event refers to a text, (m,).
            state: the state of the packet of each event, (m,).
            rows: the events to consider.
        """
        interned = self._sequences.interned[field]
        found_codes = interned.find(state[rows], text_number[rows])
        is_known = found_codes != NONE
        codes[rows[is_known]] = found_codes[is_known]

    def _argument_indices(self, names: Int64Array) -> Int64Array:
        """Return the index of each name in `ARGUMENT_NAMES`, (k,), given the codes of the names.

        The index is `NONE` for the name of an argument that is not read.
        """
        new_texts = list(self.texts)[len(self._argument_of_text) :]
        if new_texts:
            index_of_text = {
                name.encode(): index for name, index in INDEX_OF_ARGUMENT.items()
            }
            indices = [index_of_text.get(text, NONE) for text in new_texts]
            self._argument_of_text = np.append(self._argument_of_text, indices)
        return values_at(self._argument_of_text, names)

    def _add_annotations(
        self, event: Int64Array, state: Int64Array, start: Int64Array, end: Int64Array
    ) -> None:
        """Add the wanted arguments among k debug annotations.

        An annotation has its name first, as a text or by number, and then its value. There may be
        millions, so only the name and the most frequent forms of values are decoded here. The
        bytes of other values are kept; `annotation_value` decodes each distinct one later.

        Args:
            event: index of the event of each annotation, (k,).
            state: state of the packet of each annotation, (k,).
            start: first byte of each annotation, (k,).
            end: byte after each annotation, (k,).
        """
        name, value_start = self._annotation_names(state, start, end)
        argument = self._argument_indices(name)
        is_kept = argument != NONE
        is_kept &= value_start > 0
        is_kept &= value_start < end
        value, form = self._annotation_values(
            state=state[is_kept], start=value_start[is_kept], end=end[is_kept]
        )
        event_row = self.count + event[is_kept]
        self._arguments.add(
            event=event_row, name=argument[is_kept], form=form, value=value
        )

    def _annotation_values(
        self, state: Int64Array, start: Int64Array, end: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """Return the value and the `ValueForm` of each of k annotations, each (k,).

        Args:
            state: state of the packet of each annotation, (k,).
            start: first byte of the field with the value, (k,).
            end: byte after the annotation, (k,).
        """
        key = self._data[start]
        value, after = varints(self._data, start + 1)
        is_whole_number = key & WIRE_TYPE == VARINT
        is_whole_number &= key < _END_OF_WHOLE_NUMBERS
        is_whole_number &= after > 0
        is_whole_number &= after <= end
        other = np.flatnonzero(~is_whole_number)
        value[other] = self._sequences.text_codes(start[other], end[other])
        form = np.where(is_whole_number, ValueForm.WHOLE, ValueForm.MESSAGE)

        # A text by number has a key of two bytes.
        first_byte, second_byte = _NUMBER_OF_TEXT
        is_number_of_text = key[other] == first_byte
        is_number_of_text &= self._data[start[other] + 1] == second_byte
        with_number = other[is_number_of_text]
        number, _ = varints(self._data, start[with_number] + 2)
        texts = self._sequences.interned[packed.TEXT]
        value[with_number] = texts.find(state[with_number], number)
        form[with_number] = ValueForm.TEXT
        return value, form

    def _annotation_names(
        self, state: Int64Array, start: Int64Array, end: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """Return the code of the name of each annotation, and the byte after the name, each (k,).

        The code is `NONE` for an annotation that does not begin with a name.
        """
        key = self._data[start]
        number_or_length, after = varints(self._data, start + 1)
        name = np.full(len(start), NONE, dtype=np.int64)

        with_number = np.flatnonzero(key == _NUMBER_OF_NAME)
        names = self._sequences.interned[packed.ARGUMENT]
        numbers = number_or_length[with_number]
        name[with_number] = names.find(state[with_number], numbers)

        length = number_or_length
        is_complete = (length >= 0) & (length <= end - after) & (after > 0)
        with_text = np.flatnonzero((key == _NAME_OF_ARGUMENT) & is_complete)
        text_end = after[with_text] + length[with_text]
        name[with_text] = self._sequences.text_codes(after[with_text], text_end)
        after[with_text] = text_end
        return name, after

    def _add_stages(self, time: Int64Array, state: Int64Array, fields: Fields) -> None:
        """Add m `GpuRenderStageEvent`s, as `_add_track_events`.

        The name of GPU work is that of its kernel, else its own name, else that of its stage.
        """
        count = len(time)
        if not count:
            return
        interned = self._sequences.interned
        kernel_number = fields.numbers(_StageField.KERNEL_NUMBER, count)
        name_number = fields.numbers(_StageField.NAME_NUMBER, count)
        stage_number = fields.numbers(_StageField.STAGE_NUMBER, count)
        queue_number = fields.numbers(_StageField.QUEUE_NUMBER, count)
        kernel = interned[packed.KERNEL].find(state, kernel_number)
        own_name = interned[packed.NAME].find(state, name_number)
        stage = interned[packed.STAGE].find(state, stage_number)
        name = np.where(own_name == NONE, stage, own_name)
        name = np.where(kernel == NONE, name, kernel)
        queue = interned[packed.STAGE].find(state, queue_number)
        gpu = fields.numbers(_StageField.GPU, count)
        work = self.count + np.arange(count)
        track = self._gpu_threads_of(gpu, queue)
        self._work_ids.add(work=work, id=fields.numbers(_StageField.EVENT_ID, count))
        message, start, end = fields.contents(_StageField.EXTRA_DATA)
        self._add_extra_data(work[message], start, end)
        self._add(
            time=time,
            duration=fields.numbers(_StageField.DURATION, count),
            event_type=np.full(count, STAGE),
            track=track,
            name=name,
            category=stage,
        )

    def _gpu_threads_of(self, gpu: Int64Array, queue: Int64Array) -> Int64Array:
        """Return the number in `gpu_threads` of GPU work, (m,).

        Args:
            gpu: number of the GPU, (m,).
            queue: code of the name of the queue, (m,).
        """
        texts = list(self.texts)

        def thread_number(gpu: int, queue: int) -> int:
            queue_name = b"?"
            if queue != NONE:
                queue_name = texts[queue]
            return self.gpu_threads[gpu, _number_at_end(queue_name)]

        return map_distinct_rows(thread_number, gpu, queue)

    def _add_extra_data(
        self, event: Int64Array, start: Int64Array, end: Int64Array
    ) -> None:
        """Add the wanted arguments among k pairs of name and value (`ExtraData`) of GPU work.

        Args:
            event: row of the event of each pair, (k,).
            start: first byte of each pair, (k,).
            end: byte after each pair, (k,).
        """
        pairs = fields_of(self._data, start, end)
        argument = np.full(len(event), NONE, dtype=np.int64)
        value = np.full(len(event), NONE, dtype=np.int64)
        names = pairs.contents(_EXTRA_NAME)
        name_codes = self._sequences.text_codes(names.start, names.end)
        argument[names.message] = self._argument_indices(name_codes)
        values = pairs.contents(_EXTRA_VALUE)
        is_wanted = argument[values.message] != NONE
        value[values.message[is_wanted]] = self._sequences.text_codes(
            values.start[is_wanted], values.end[is_wanted]
        )
        has_name = argument != NONE
        has_value = value != NONE
        kept = np.flatnonzero(has_name & has_value)
        may_be_number = np.isin(argument[kept], NUMBERS_AS_TEXT)
        form = np.where(may_be_number, ValueForm.LOOSE, ValueForm.TEXT)
        self._arguments.add(
            event=event[kept], name=argument[kept], form=form, value=value[kept]
        )

    def _add_counter_values(self, time: int, state: int, event: Message) -> None:
        """Add the values in a `GpuCounterEvent`, each as an event with the value as argument."""
        key = (state, number_in(event, _CounterEventField.DESCRIPTOR_NUMBER))
        counters = self._sequences.counters.get(key, packed.NO_COUNTERS)
        gpu = number_in(event, _CounterEventField.GPU) or counters.gpu
        names = counters.names or packed.counter_names(self.raw, event).names
        track = self.gpu_threads[f"GPU {gpu} Counters", "?"]
        for counter in parts_of(self.raw, event, _CounterEventField.COUNTERS):
            counter_id = number_in(counter, _CounterField.ID)
            name = names.get(counter_id, f"counter {counter_id}")
            value = self._counter_value(counter)
            token = json.dumps(value).encode()
            self._arguments.add(
                event=_array_of(self.count),
                name=_array_of(INDEX_OF_ARGUMENT[""]),
                form=_array_of(ValueForm.TOKEN),
                value=_array_of(self.texts[token]),
            )
            self._add(
                time=_array_of(time),
                duration=_array_of(0),
                event_type=_array_of(VALUE),
                track=_array_of(track),
                name=_array_of(self.texts[name.encode()]),
                category=_array_of(NONE),
            )

    def _counter_value(self, counter: Message) -> float:
        """Return the value of a `GpuCounter`, which is a whole number or a float; 0 if missing."""
        whole_numbers = counter.get(_CounterField.INT_VALUE)
        floats = counter.get(_CounterField.DOUBLE_VALUE)
        values = whole_numbers or floats or [0]
        value = values[-1]
        if isinstance(value, int):
            return value
        start, _ = value
        (number,) = struct.unpack_from("<d", self.raw, start)
        return float(number)


class Submissions(NamedTuple):
    """Pairs of a call and GPU work that it submitted, as rows of the events."""

    call: Int64Array  #: (s,)
    work: Int64Array  #: (s,)


def _array_of(number: int) -> Int64Array:
    """Return a column with one row."""
    return np.array([number], dtype=np.int64)


def _number_at_end(text: bytes) -> int | str:
    """Return the number at the end of a text, such as 7 of `Stream 7`, else the text itself."""
    match = _NUMBER_AT_END.search(text)
    if match is None:
        return text.decode("utf-8", "replace")
    digits = match[1]
    return int(digits)
