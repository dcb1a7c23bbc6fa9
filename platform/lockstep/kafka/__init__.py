"""Kafka as lockstep sees it: clients, discovery, audit, and the reader of offset ranges."""
