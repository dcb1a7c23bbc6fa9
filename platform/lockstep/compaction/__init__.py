"""Compaction of closed hours: many small files into few large ones, order kept, proven to change no row."""
