"""Rehearsals on real processes: the load test of a stream, and the game day of a whole platform."""
