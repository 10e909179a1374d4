"""The kinds of time that cannot be analyzed, as tables and JSON call them; see `coverage`."""

DROPPED_EVENTS = "dropped_events"
PRE_RECORDING = "pre_recording"
WARM_UP = "warm_up"
