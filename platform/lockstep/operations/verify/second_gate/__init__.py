"""A second gate for each integrity class, written from docs/integrity.md and not from the engine's gate.

Two gates that agree on every message of a log are evidence; one gate that agrees with itself is none.
"""
