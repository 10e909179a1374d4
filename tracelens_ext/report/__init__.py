"""Writers: they take named DataFrames and know nothing of traces."""
