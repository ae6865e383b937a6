"""What `bench_postgres` is made of: the upstream with pgbench, our side, and the parts."""
