"""Turns packets of a Perfetto trace into columns of events.

Events are begins and ends of slices, instants, GPU work, and values of GPU counters.
"""

from __future__ import annotations

import json
import re
import struct
from collections import defaultdict
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.readers.builder import Interner, map_distinct_rows
from tracelens_ext.readers.kineto.schema import FLOW_ID, PLAN
from tracelens_ext.readers.perfetto import packets as packed
from tracelens_ext.readers.perfetto.packets import Message, Sequences, number_in
from tracelens_ext.readers.xplane.many_messages import (
    FIELD_SHIFT,
    VARINT,
    WIRE_TYPE,
    Bytes,
    Fields,
    fields_of,
    varints,
)
from tracelens_ext.trace import NONE, BoolArray, Int64Array
from tracelens_ext.trace.lookup import values_at

#: Fields of `TracePacket`.
_TRACK_EVENT = 11
_COUNTER_EVENT = 52
_STAGE_EVENT = 53
_DESCRIPTOR = 60
#: Those of the kernel of a phone, of its processes, and of Chrome.
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


#: Fields of `ProcessDescriptor` and `ThreadDescriptor`.
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


#: The fields of a pair of extra data.
_EXTRA_NAME = 1
_EXTRA_VALUE = 2
#: The fields of debug annotations, as keys of one byte or two.
_NAME_OF_ARGUMENT = 0x52
_NUMBER_OF_NAME = 0x08
_NUMBER_OF_TEXT = (0x88, 1)
_HIGHEST_WHOLE_NUMBER = 0x28
_SUBMISSION_ID = 1 << 3 | VARINT
#: Types of `TrackEvent`, and two of our own.
BEGIN = 1
END = 2
INSTANT = 3
STAGE = 4
VALUE = 5


class WantedArgument(NamedTuple):
    """An argument that a trace keeps."""

    is_text: bool
    of_kind: BoolArray  #: `EventKind` → a flag that says if it is kept of such events


def _wanted_arguments(*, is_text: bool) -> dict[str, WantedArgument]:
    """Return the arguments that the plan of readers has as texts, or as numbers, by name."""
    kinds_by_name: dict[str, list[BoolArray]] = {}
    for plan in PLAN:
        names = set(plan.numbers)
        if is_text:
            names = set().union(*plan.texts)
        names.discard(FLOW_ID)
        for name in names:
            kinds = kinds_by_name.setdefault(name, [])
            kinds.append(plan.wanted)
    wanted = {}
    for name, kinds in sorted(kinds_by_name.items()):
        of_kind = np.any(kinds, axis=0)
        wanted[name] = WantedArgument(is_text=is_text, of_kind=of_kind)
    return wanted


#: Argument → what is kept of it.
WANTED_ARGUMENTS: Final = _wanted_arguments(is_text=False) | _wanted_arguments(
    is_text=True
)
#: The names of arguments that are kept, and of those that only tell what an event is.
ARGUMENT_NAMES: Final = tuple(dict.fromkeys(list(WANTED_ARGUMENTS) + ["grid", "cbid"]))
_ALIASES: Final = {
    "corr_id": "correlation",
    "metadata": "annotation",
    "grid_size": "grid",
}
#: Places in `ARGUMENT_NAMES`, also by their other names.
_PLACE_OF_NAME: Final = {name: place for place, name in enumerate(ARGUMENT_NAMES)}
for _alias, _name in _ALIASES.items():
    if _name in _PLACE_OF_NAME:
        _PLACE_OF_NAME[_alias] = _PLACE_OF_NAME[_name]
_NUMBERS_AS_TEXT: Final = [
    place
    for place, name in enumerate(ARGUMENT_NAMES)
    if name.endswith(("nelems", "Group size"))
]
_NUMBER: Final = re.compile(rb"(\d{1,9})\s*$")


class ValueForm(IntEnum):
    """What the number that is kept for the value of an argument stands for."""

    WHOLE = 0  #: itself
    TOKEN = 1  #: the code of JSON
    TEXT = 2  #: the code of a text
    LOOSE = 3  #: the code of a text that may be that of a number
    MESSAGE = 4  #: the code of the rest of the message of an annotation


class PerfettoTrack(NamedTuple):
    """What the file has about a track itself, without those around it."""

    parent: int
    name: str
    process: int | None
    process_name: str
    thread: tuple[int, int] | None  #: process and thread


class _ColumnPieces:
    """Columns of whole numbers that come in pieces."""

    def __init__(self, *names: str) -> None:
        self._pieces: dict[str, list[Int64Array]] = {}
        for name in names:
            self._pieces[name] = [np.empty(0, dtype=np.int64)]

    def add(self, **columns: Int64Array) -> None:
        """Add rows; all columns must be given."""
        for name, pieces in self._pieces.items():
            pieces.append(columns[name])

    def frame(self) -> pd.DataFrame:
        """Return all rows."""
        columns = {
            name: np.concatenate(pieces) for name, pieces in self._pieces.items()
        }
        return pd.DataFrame(columns)


class Events:
    """The events of a file on their way to a trace.

    Attributes:
        count: of the packets with events so far.
        is_foreign: some packets are of a phone or a browser.
        raw: the bytes of the file.
        texts: the distinct texts as bytes, and their codes.
        tracks: by their uuid.
        places: process and stream of GPU work, numbered.
    """

    def __init__(self, data: Bytes) -> None:
        self._data = data
        self.raw = memoryview(data.data)
        self._sequences = Sequences(data)
        self.texts = self._sequences.texts
        self.count = 0
        self.is_foreign = False
        self.tracks: dict[int, PerfettoTrack] = {}
        self.places: Interner[tuple[int | str, int | str]] = Interner()
        self._columns = _ColumnPieces(
            "time", "duration", "type", "track", "name", "category"
        )
        self._arguments = _ColumnPieces("event", "name", "form", "value")
        self._submissions = _ColumnPieces("call", "id")
        self._work_ids = _ColumnPieces("work", "id")
        #: code of a text → its place in `ARGUMENT_NAMES`, `NONE` without
        self._place_of_text = np.empty(0, dtype=np.int64)

    def take(self, packets: Fields, count: int) -> None:
        """Add the events in the packets of a window, of which there are `count`."""
        state, time = self._sequences.take(packets, count)
        field_numbers = packets.key >> FIELD_SHIFT
        if np.isin(field_numbers, _FOREIGN).any():
            self.is_foreign = True
        for _, descriptor in packed.messages(self.raw, packets, _DESCRIPTOR):
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
        for number, event in packed.messages(self.raw, packets, _COUNTER_EVENT):
            time_of_event = int(time[number])
            state_of_event = int(state[number])
            self._add_counter_values(time_of_event, state_of_event, event)

    def _track(self, descriptor: Message) -> PerfettoTrack:
        raw = self.raw
        process = next(packed.parts_of(raw, descriptor, _DescriptorField.PROCESS), None)
        thread = next(packed.parts_of(raw, descriptor, _DescriptorField.THREAD), None)
        own_name = packed.text_in(raw, descriptor, _DescriptorField.NAME)
        static_name = packed.text_in(raw, descriptor, _DescriptorField.STATIC_NAME)
        process_id = None
        process_name = ""
        if process is not None:
            process_id = number_in(process, _PROCESS_ID)
            process_name = packed.text_in(raw, process, _PROCESS_NAME)
        process_and_thread = None
        thread_name = ""
        if thread is not None:
            process_of_thread = number_in(thread, _PROCESS_OF_THREAD)
            process_and_thread = (process_of_thread, number_in(thread, _THREAD_ID))
            thread_name = packed.text_in(raw, thread, _THREAD_NAME)
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
        """Return all events: times in ns; type; track; codes of name and category.

        The track of GPU work and of values is a place, that of others a uuid.
        """
        return self._columns.frame()

    def arguments(self) -> pd.DataFrame:
        """Return the arguments of all events: event, place in `ARGUMENT_NAMES`, form, value."""
        arguments = self._arguments.frame()
        # not of a window that is damaged
        return arguments[arguments["event"] < self.count]

    def submissions(self) -> tuple[Int64Array, Int64Array]:
        """Return calls, and the GPU work that each has submitted, by number of the event, (s,)."""
        work = self._work_ids.frame().drop_duplicates("id")
        pairs = self._submissions.frame().merge(work, on="id")
        call = pairs["call"].to_numpy()
        work_of_call = pairs["work"].to_numpy()
        # Those of a window that is damaged have no event.
        has_call = call < self.count
        has_work = work_of_call < self.count
        are_events = has_call & has_work
        return call[are_events], work_of_call[are_events]

    def _add_track_events(
        self, time: Int64Array, state: Int64Array, fields: Fields
    ) -> None:
        count = len(time)
        event_type = fields.numbers(_TrackEventField.TYPE, count)
        is_other_type = (event_type < 0) | (event_type > INSTANT)
        event_type[is_other_type] = 0
        track = fields.numbers(_TrackEventField.TRACK, count)
        name = self._sequences.text(fields, _TrackEventField.NAME, count)
        category = self._sequences.text(fields, _TrackEventField.CATEGORY, count)
        name_number = fields.numbers(_TrackEventField.NAME_NUMBER, count)
        category_number = fields.numbers(_TrackEventField.CATEGORY_NUMBER, count)
        starts = np.flatnonzero(event_type != END)
        self._fill_interned(
            column=name,
            number=packed.NAME,
            text_number=name_number,
            state=state,
            rows=starts,
        )
        self._fill_interned(
            column=category,
            number=packed.CATEGORY,
            text_number=category_number,
            state=state,
            rows=starts,
        )
        event, start, end = fields.contents(_TrackEventField.SUBMISSION)
        if len(event):
            extension = fields_of(self._data, start, end)
            is_id = extension.key == _SUBMISSION_ID
            call = self.count + event[extension.message[is_id]]
            self._submissions.add(call=call, id=extension.value[is_id])
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

    def _tracks_of(self, track: Int64Array, state: Int64Array) -> Int64Array:
        """Return the tracks of events; one that is 0 is the usual one of the sequence."""
        usual_track = self._sequences.track
        if not usual_track:
            return track
        states = range(int(state.max(initial=0)) + 1)
        track_of_state = np.array([usual_track.get(number, 0) for number in states])
        return np.where(track == 0, track_of_state[state], track)

    def _fill_interned(
        self,
        column: Int64Array,
        number: int,
        text_number: Int64Array,
        state: Int64Array,
        rows: Int64Array,
    ) -> None:
        """Set the codes of texts in some rows, where the event gives a text by number."""
        codes = self._sequences.interned[number].find(state[rows], text_number[rows])
        is_known = codes != NONE
        column[rows[is_known]] = codes[is_known]

    def _argument_places(self, names: Int64Array) -> Int64Array:
        """Return the places in `ARGUMENT_NAMES` of codes of names, `NONE` of others."""
        new_texts = list(self.texts)[len(self._place_of_text) :]
        if new_texts:
            place_of_name = {
                name.encode(): place for name, place in _PLACE_OF_NAME.items()
            }
            places = [place_of_name.get(text, NONE) for text in new_texts]
            self._place_of_text = np.append(self._place_of_text, places)
        return values_at(self._place_of_text, names)

    def _add_annotations(
        self, event: Int64Array, state: Int64Array, start: Int64Array, end: Int64Array
    ) -> None:
        """Keep the debug annotations that are wanted: whole numbers, or the bytes of a value.

        An annotation has its name first, as a text or by number, and then its value.
        """
        name, value_start = self._annotation_names(state, start, end)
        place = self._argument_places(name)
        is_kept = place != NONE
        is_kept &= value_start > 0
        is_kept &= value_start < end
        value, form = self._annotation_values(
            state=state[is_kept], start=value_start[is_kept], end=end[is_kept]
        )
        event_number = self.count + event[is_kept]
        self._arguments.add(
            event=event_number, name=place[is_kept], form=form, value=value
        )

    def _annotation_values(
        self, state: Int64Array, start: Int64Array, end: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """Return the values of annotations, given where these begin, and their forms."""
        key = self._data[start]
        value, after = varints(self._data, start + 1)
        is_whole = key & WIRE_TYPE == VARINT
        is_whole &= key < _HIGHEST_WHOLE_NUMBER
        is_whole &= after > 0
        is_whole &= after <= end
        others = np.flatnonzero(~is_whole)
        value[others] = self._sequences.slices(start[others], end[others])
        form = np.where(is_whole, ValueForm.WHOLE, ValueForm.MESSAGE)
        first_byte, second_byte = _NUMBER_OF_TEXT
        next_key = self._data[start[others] + 1]
        is_number_of_text = key[others] == first_byte
        is_number_of_text &= next_key == second_byte
        numbered = others[is_number_of_text]
        number, _ = varints(self._data, start[numbered] + 2)
        texts = self._sequences.interned[packed.TEXT]
        value[numbered] = texts.find(state[numbered], number)
        form[numbered] = ValueForm.TEXT
        return value, form

    def _annotation_names(
        self, state: Int64Array, start: Int64Array, end: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """Return the codes of the names of annotations, `NONE` without, and where values begin."""
        first_byte = self._data[start]
        number_or_length, after = varints(self._data, start + 1)
        name = np.full(len(start), NONE, dtype=np.int64)
        numbered = np.flatnonzero(first_byte == _NUMBER_OF_NAME)
        names = self._sequences.interned[packed.ARGUMENT]
        name[numbered] = names.find(state[numbered], number_or_length[numbered])
        length = number_or_length
        is_whole_text = (length >= 0) & (length <= end - after) & (after > 0)
        named = np.flatnonzero((first_byte == _NAME_OF_ARGUMENT) & is_whole_text)
        text_end = after[named] + length[named]
        name[named] = self._sequences.slices(after[named], text_end)
        after[named] = text_end
        return name, after

    def _add_stages(self, time: Int64Array, state: Int64Array, fields: Fields) -> None:
        """Add GPU work, as render stages."""
        count = len(time)
        if not count:
            return
        interned = self._sequences.interned
        kernel_number = fields.numbers(_StageField.KERNEL_NUMBER, count)
        name_number = fields.numbers(_StageField.NAME_NUMBER, count)
        stage_number = fields.numbers(_StageField.STAGE_NUMBER, count)
        queue_number = fields.numbers(_StageField.QUEUE_NUMBER, count)
        kernel = interned[packed.KERNEL].find(state, kernel_number)
        other_name = interned[packed.NAME].find(state, name_number)
        stage = interned[packed.STAGE].find(state, stage_number)
        name = np.where(other_name == NONE, stage, other_name)
        name = np.where(kernel == NONE, name, kernel)
        queue = interned[packed.STAGE].find(state, queue_number)
        gpu = fields.numbers(_StageField.GPU, count)
        work = self.count + np.arange(count)
        track = self._places_of_work(gpu, queue)
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

    def _places_of_work(self, gpu: Int64Array, queue: Int64Array) -> Int64Array:
        """Return the places of GPU work, of its GPU and the name of its queue."""
        texts = list(self.texts)

        def place_of(gpu: int, queue: int) -> int:
            queue_name = b"?"
            if queue != NONE:
                queue_name = texts[queue]
            queue_number = _number_at_end(queue_name)
            return self.places[gpu, queue_number]

        return map_distinct_rows(place_of, gpu, queue)

    def _add_extra_data(
        self, event: Int64Array, start: Int64Array, end: Int64Array
    ) -> None:
        """Keep the pairs of name and value of GPU work that are wanted."""
        pairs = fields_of(self._data, start, end)
        place = np.full(len(event), NONE, dtype=np.int64)
        value = np.full(len(event), NONE, dtype=np.int64)
        pair_of_name, start_of_name, end_of_name = pairs.contents(_EXTRA_NAME)
        name = self._sequences.slices(start_of_name, end_of_name)
        place[pair_of_name] = self._argument_places(name)
        pair_of_value, start_of_value, end_of_value = pairs.contents(_EXTRA_VALUE)
        is_wanted = place[pair_of_value] != NONE
        start_of_wanted = start_of_value[is_wanted]
        end_of_wanted = end_of_value[is_wanted]
        wanted_pair = pair_of_value[is_wanted]
        value[wanted_pair] = self._sequences.slices(start_of_wanted, end_of_wanted)
        has_name = place != NONE
        has_value = value != NONE
        kept = np.flatnonzero(has_name & has_value)
        may_be_number = np.isin(place[kept], _NUMBERS_AS_TEXT)
        form = np.where(may_be_number, ValueForm.LOOSE, ValueForm.TEXT)
        self._arguments.add(
            event=event[kept], name=place[kept], form=form, value=value[kept]
        )

    def _add_counter_values(self, time: int, state: int, event: Message) -> None:
        key = (state, number_in(event, _CounterEventField.DESCRIPTOR_NUMBER))
        counters = self._sequences.counters.get(key, packed.NO_COUNTERS)
        gpu = number_in(event, _CounterEventField.GPU) or counters.gpu
        names = counters.names or packed.counter_names(self.raw, event).names
        track = self.places[f"GPU {gpu} Counters", "?"]
        for counter in packed.parts_of(
            data=self.raw, message=event, number=_CounterEventField.COUNTERS
        ):
            counter_id = number_in(counter, _CounterField.ID)
            name = names.get(counter_id, f"counter {counter_id}")
            value = self._counter_value(counter)
            token = json.dumps(value).encode()
            self._arguments.add(
                event=_one(self.count),
                name=_one(_PLACE_OF_NAME[""]),
                form=_one(ValueForm.TOKEN),
                value=_one(self.texts[token]),
            )
            self._add(
                time=_one(time),
                duration=_one(0),
                event_type=_one(VALUE),
                track=_one(track),
                name=_one(self.texts[name.encode()]),
                category=_one(NONE),
            )

    def _counter_value(self, counter: Message) -> float:
        """Return the value of a `GpuCounter`: a whole number, or eight bytes of a float."""
        whole_numbers = counter.get(_CounterField.INT_VALUE)
        floats = counter.get(_CounterField.DOUBLE_VALUE)
        values = whole_numbers or floats or [0]
        value = values[-1]
        if isinstance(value, int):
            return value
        start, _ = value
        (number,) = struct.unpack_from("<d", self.raw, start)
        return float(number)


def _one(number: int) -> Int64Array:
    """Return a column of one row."""
    return np.array([number], dtype=np.int64)


def _number_at_end(text: bytes) -> int | str:
    """Return 7 for `Stream 7`; the text itself without a number."""
    match = _NUMBER.search(text)
    if match is None:
        return text.decode("utf-8", "replace")
    digits = match[1]
    return int(digits)


def ends_of(begins: BoolArray, track: Int64Array, time: Int64Array) -> Int64Array:
    """Return the end of each begin; `NONE` for a begin without an end, and for ends.

    A track is a stack: an end is that of the last begin that has none yet. The order is that of the
    file, if the times of each track are in order there. A file may also have all begins of a kind,
    then all their ends, the first for the first; what is left is put in order of time, ends before
    begins.

    Args:
        begins: events that begin a slice; the others end one.
        track: of each event.
        time: of each event, ns.
    """
    end_of_begin = np.full(len(begins), NONE, dtype=np.int64)
    by_track = np.argsort(track, kind="stable")
    is_same_track = np.diff(track[by_track]) == 0
    is_earlier = np.diff(time[by_track]) < 0
    if not (is_same_track & is_earlier).any():
        _match_stacks(
            order=by_track, begins=begins, track=track, end_of_begin=end_of_begin
        )
        return end_of_begin
    _match_runs(begins=begins, track=track, time=time, end_of_begin=end_of_begin)
    is_unmatched = end_of_begin == NONE
    is_unmatched[end_of_begin[end_of_begin != NONE]] = False
    unmatched = np.flatnonzero(is_unmatched)
    by_time = np.lexsort((begins[unmatched], time[unmatched], track[unmatched]))
    _match_stacks(
        order=unmatched[by_time], begins=begins, track=track, end_of_begin=end_of_begin
    )
    return end_of_begin


def _match_runs(
    begins: BoolArray, track: Int64Array, time: Int64Array, end_of_begin: Int64Array
) -> None:
    """Match runs of begins with as many ends behind them on their tracks, if no slices cross.

    Example: of B B B E E E the first event is matched with the fourth, the second with the fifth,
    the third with the sixth, if all are on the tracks of their ends.
    """
    is_change = np.diff(begins, prepend=not begins[0])
    bounds = np.append(np.flatnonzero(is_change), len(begins))
    run_size = np.diff(bounds)
    is_followed_by_as_many = run_size[:-1] == run_size[1:]
    runs = np.flatnonzero(begins[bounds[:-2]] & is_followed_by_as_many)
    if not len(runs):
        return
    size = run_size[runs]
    stop_in_runs = np.cumsum(size)  # places when these runs are put one after another
    start_in_runs = stop_in_runs - size
    place_in_run = np.arange(stop_in_runs[-1]) - np.repeat(start_in_runs, size)
    begin = np.repeat(bounds[runs], size) + place_in_run
    end = begin + np.repeat(size, size)
    fits = (track[begin] == track[end]) & (time[begin] <= time[end])
    fits[1:] &= ~_crosses_previous(
        begin=begin, track=track[begin], start_time=time[begin], end_time=time[end]
    )
    does_run_fit = np.logical_and.reduceat(fits, start_in_runs)
    is_matched = np.repeat(does_run_fit, size)
    end_of_begin[begin[is_matched]] = end[is_matched]


def _crosses_previous(
    begin: Int64Array, track: Int64Array, start_time: Int64Array, end_time: Int64Array
) -> BoolArray:
    """Tell which slices but the first overlap the previous one of their track, and end later."""
    overlaps = start_time[1:] < end_time[:-1]
    ends_later = end_time[:-1] < end_time[1:]
    is_next_event = np.diff(begin) == 1
    is_same_track = np.diff(track) == 0
    starts_later = start_time[1:] >= start_time[:-1]
    crosses: BoolArray = (
        overlaps & ends_later & is_next_event & is_same_track & starts_later
    )
    return crosses


def _match_stacks(
    order: Int64Array, begins: BoolArray, track: Int64Array, end_of_begin: Int64Array
) -> None:
    """Match events that are in order on their tracks; ends that nothing began are passed over."""
    open_begins: dict[int, list[int]] = defaultdict(list)
    matched_begins: list[int] = []
    matched_ends: list[int] = []
    is_begin_in_order = begins[order].tolist()
    track_in_order = track[order].tolist()
    events = zip(order.tolist(), is_begin_in_order, track_in_order, strict=True)
    for event, is_begin, track_of_event in events:
        stack = open_begins[track_of_event]
        if is_begin:
            stack.append(event)
        elif stack:
            matched_begins.append(stack.pop())
            matched_ends.append(event)
    end_of_begin[matched_begins] = matched_ends
