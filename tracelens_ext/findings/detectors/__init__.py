"""The built-in detectors of findings, one a module, each with its texts."""
