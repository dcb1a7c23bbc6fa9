"""Data-quality checks: one Spark aggregate, one Great Expectations suite, one result per rule.

The entry point is `check.check_stream`; `rules` defines the rules, `aggregate` measures, `suite`
judges. Nothing here imports dagster, and Great Expectations and Spark are imported on use.
"""
