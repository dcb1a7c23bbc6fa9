"""Compaction of closed hours: many small files into few large ones, order preserved, proven to change no row."""
