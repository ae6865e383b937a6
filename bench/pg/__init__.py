"""The parts of `bench_pg`."""
