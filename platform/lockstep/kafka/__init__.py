"""Kafka clients, cluster metadata, audit, and the reader of offset ranges."""
