"""rocprofv3, AMD's profiler: its databases (rocpd), its JSON, and its CSV tables."""
