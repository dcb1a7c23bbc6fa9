"""Proves, from Kafka and the tables alone, that a stream's table is the fold of its log.

It shares nothing with the engine that wrote the table: neither its reader, nor its gates, nor its fold. What is common
is what a user declared (decoder, transform) and the readers of stored files.
"""
