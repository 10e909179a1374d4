"""The replay: a trace run again by its dependencies, as recorded or with changed durations."""
