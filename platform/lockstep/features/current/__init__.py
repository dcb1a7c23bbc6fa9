"""The current table: one row a session and key of a stream, next to its table of changes."""
