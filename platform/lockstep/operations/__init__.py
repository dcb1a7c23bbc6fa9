"""Operator commands: resume a halted stream, close an hour, show the status of a stream."""
