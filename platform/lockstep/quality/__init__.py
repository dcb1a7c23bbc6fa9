"""Proof that a table is whole: one Spark aggregate, one Great Expectations suite, a result a rule.

`check.check_stream` is the way in; `rules` says what is promised, `summary` measures it, `suite`
judges it. Nothing here imports dagster, and Great Expectations and Spark are imported when used.
"""
