"""Benchmarks: one seeded workload in Kafka, several systems that fold it, CPU time per message.

`python -m benchmarks --size main` (or `make bench`) runs all of it. A system is any command that
keeps the contract of `benchmarks.systems`; what it wrote is proved equal before its time counts.
"""
