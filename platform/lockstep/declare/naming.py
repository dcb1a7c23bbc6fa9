"""Names of streams, derived tables, lookups and shadows."""

from __future__ import annotations

import re

NAME = re.compile(r"(?=.{1,63}\Z)[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
"""A name is a folder, an asset key, a consumer group and the beginning of names in Dagster and SQL.

Words are joined by single underscores. A name that is made from it adds one word, or two underscores and a word: so two
names never meet in names made from them.
"""
NO_NAME = "is not a lower-case name of words with single underscores in between, of at most 63 characters"
