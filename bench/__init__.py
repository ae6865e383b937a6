"""Benchmarks, one file per promise. `python -m bench` runs all (or those named) and prints one table."""
