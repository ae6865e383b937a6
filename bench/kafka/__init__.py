"""What `bench_kafka` is made of: the load and its fold, our side, the watching of memory and time."""
