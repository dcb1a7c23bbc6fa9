"""Turns a Stream into Dagster assets, checks, jobs and sensors; the only package that imports dagster.

Nothing here decides who may write: the epoch in the table's log does. Dagster is where people see
and steer a stream, and it may die, be restarted or be two at any time.
"""
