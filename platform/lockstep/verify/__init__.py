"""The independent proof: recomputes a table from Kafka with code of its own."""
