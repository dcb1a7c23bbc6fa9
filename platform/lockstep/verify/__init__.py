"""The independent proof: recomputes a table from Kafka with separate code."""
