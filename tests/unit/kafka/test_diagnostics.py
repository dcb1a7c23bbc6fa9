"""The log lines of a client about its connections lead to the one cause that a person can act on."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError as ClientError

from lockstep.kafka.diagnostics import LINES_MAX, TEXT_MAX, ConnectionLog, LogLine, find_connection_cause

REFUSED = LogLine("127.0.0.1:9092/bootstrap: Connect to ipv4#127.0.0.1:9092 failed: Connection refused")
CLOSED = LogLine("FAIL [rdkafka#p-1] [thrd:x]: 127.0.0.1:9092/1: Disconnected: connection closed by peer")
WRONG = LogLine(
    "sasl_ssl://127.0.0.1:9093/bootstrap: SASL authentication error: Authentication failed: Invalid name",
    ClientError._AUTHENTICATION,  # noqa: SLF001  # the client's name
)
ALL_DOWN = LogLine("1/1 brokers are down", ClientError._ALL_BROKERS_DOWN)  # noqa: SLF001  # the client's name
UNVERIFIED = LogLine(
    "ssl://[::1]:9093/2: SSL handshake failed: error:0A000086:SSL routines::certificate verify failed: x"
)


@pytest.mark.parametrize(
    ("lines", "problem", "certain"),
    [
        ([REFUSED, ALL_DOWN], "127.0.0.1:9092: Connect to ipv4#127.0.0.1:9092 failed: Connection refused", False),
        ([CLOSED, REFUSED, CLOSED], "127.0.0.1:9092: Connect to ipv4#127.0.0.1:9092 failed", False),
        ([CLOSED], "closes the connection without an answer", False),
        ([REFUSED, WRONG, CLOSED], "authentication failed at 127.0.0.1:9093: Authentication failed: Invalid", True),
        ([UNVERIFIED, CLOSED], "the certificate of [::1]:9093, an address that the cluster named", True),
        ([LogLine("h:1/bootstrap: Failed to resolve 'h:1': Name or service not known")], "the host name of h:1", False),
        ([LogLine("h:1/bootstrap: something new")], "h:1: something new", False),
    ],
)
def test_the_most_telling_line_gives_the_cause(lines: list[LogLine], problem: str, certain: bool) -> None:  # noqa: FBT001
    cause = find_connection_cause(lines)
    assert cause is not None
    assert problem in cause.problem
    assert cause.certain is certain
    assert cause.next_step


@pytest.mark.parametrize("lines", [[], [ALL_DOWN], [LogLine("CONFWARN [x]: a property only applies when")]])
def test_what_names_no_broker_is_no_cause(lines: list[LogLine]) -> None:
    assert find_connection_cause(lines) is None


def test_a_certificate_names_where_to_look() -> None:
    cause = find_connection_cause([UNVERIFIED])
    assert cause is not None
    assert cause.unverified == "[::1]:9093"


def test_what_was_said_before_an_answer_is_forgotten() -> None:
    heard = ConnectionLog()
    heard.log(3, "FAIL [%s] [%s]: %s", "p-1", "t", WRONG.text)
    assert heard.cause() is not None
    heard.forget()
    assert heard.cause() is None


def test_a_broker_cannot_fill_the_memory_or_write_on_the_terminal() -> None:
    heard = ConnectionLog()
    for _ in range(2 * LINES_MAX):
        heard.log(3, "%s", f"h:1/bootstrap: \x1b[31mred\n{'x' * 10_000}")
    cause = heard.cause()
    assert cause is not None
    assert cause.problem.isprintable()
    assert len(cause.problem) <= TEXT_MAX
