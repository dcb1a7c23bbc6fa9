"""Turns a Stream into Dagster assets, checks, jobs and sensors; the only package that imports dagster.

Nothing here decides who may write: the epoch in the table's log does. Dagster is where people monitor
and control a stream; it may die, restart or run twice at any time.
"""
