"""The time of each device: busy, idle, communicating; over time; queues, copies and counters."""
