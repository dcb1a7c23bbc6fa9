"""Sends headers with names of arbitrary bytes, as other clients can; the Python client accepts only text."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int, c_size_t, c_ssize_t, c_void_p
from pathlib import Path

from tests.support.feed import kept_producer

PRODUCER = 0
COPY = 2
ANSWER_MS = 30_000
TOPIC, PARTITION, VALUE, FLAGS, HEADERS, END = 1, 3, 4, 7, 10, 0
"""Types of the arguments of `rd_kafka_producev`."""


def send_with_header(bootstrap_servers: str, topic: str, name: bytes, values: list[bytes]) -> None:
    """Append values without key to partition 0, each with a header of this name."""
    client = _load_client(bootstrap_servers)
    settings = client.rd_kafka_conf_new()
    error = ctypes.create_string_buffer(512)
    client.rd_kafka_conf_set(settings, b"bootstrap.servers", bootstrap_servers.encode(), error, len(error))
    producer = client.rd_kafka_new(PRODUCER, settings, error, c_size_t(len(error)))
    assert producer, error.value
    for value in values:
        headers = client.rd_kafka_headers_new(c_size_t(1))
        assert client.rd_kafka_header_add(headers, name, len(name), b"1", 1) == 0
        place = (c_int(TOPIC), c_char_p(topic.encode()), c_int(PARTITION), c_int(0))
        content = (c_int(VALUE), c_char_p(value), c_size_t(len(value)), c_int(FLAGS), c_int(COPY))
        refused = client.rd_kafka_producev(
            c_void_p(producer), *place, *content, c_int(HEADERS), c_void_p(headers), c_int(END)
        )
        assert refused == 0
    assert client.rd_kafka_flush(c_void_p(producer), ANSWER_MS) == 0
    client.rd_kafka_destroy(c_void_p(producer))


def _load_client(bootstrap_servers: str) -> ctypes.CDLL:
    """Load the C library that the Python client of this process uses."""
    kept_producer(bootstrap_servers)
    mapped = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
    client = ctypes.CDLL(next(path for path in mapped if "/librdkafka" in path))
    for made in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_headers_new"):
        getattr(client, made).restype = c_void_p
    client.rd_kafka_conf_set.argtypes = [c_void_p, c_char_p, c_char_p, c_char_p, c_size_t]
    client.rd_kafka_new.argtypes = [c_int, c_void_p, c_char_p, c_size_t]
    client.rd_kafka_header_add.argtypes = [c_void_p, c_char_p, c_ssize_t, c_char_p, c_ssize_t]
    return client
