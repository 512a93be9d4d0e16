"""Reproducible measurements. Each module is a command: `python -m bench.<name> --help`."""
