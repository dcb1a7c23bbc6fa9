"""Other systems on the workload of the benchmarks: each one's code, how it is built, and what it promises."""
