"""What a recording covers: dropped events, earlier work, warm-up, and data not recorded."""
