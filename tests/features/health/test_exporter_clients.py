"""Clients of the exporter that send half a request."""

from __future__ import annotations

import socket
from contextlib import ExitStack, closing
from http.client import HTTPConnection

import pytest

from lockstep.features.health import exporter
from lockstep.features.health.exporter import HealthCollector, start_exporter
from lockstep.settings import Settings


def test_a_client_that_asks_only_half_is_left_and_others_are_answered(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(exporter.ClientHandler, "timeout", 0.3)
    with ExitStack() as stack:
        server = start_exporter(HealthCollector([], Settings()), "127.0.0.1", 0)
        stack.callback(server.server_close)
        stack.callback(server.shutdown)
        slow = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.server_port), 5.0)) for _ in range(20)
        ]
        for each in slow:
            each.sendall(b"GET /metrics HTTP/1.1\r\n")
        with closing(HTTPConnection("127.0.0.1", server.server_port, timeout=5.0)) as scrape:
            scrape.request("GET", "/metrics")
            assert b"lockstep_scrape_duration_seconds" in scrape.getresponse().read()
        assert [each.recv(1) for each in slow] == [b""] * len(slow)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("bound", "host", "status"),
    [
        ("127.0.0.1", "127.0.0.1:9464", 200),
        ("127.0.0.1", "LOCALHOST:9464", 200),
        ("127.0.0.1", "[::1]", 200),
        ("127.0.0.1", "attacker.example:9464", 421),
        ("127.0.0.1", "127.0.0.1.attacker.example", 421),
        ("127.0.0.1", "0.0.0.0:9464", 421),
        ("127.0.0.1", "", 421),
        ("0.0.0.0", "metrics:9464", 200),  # noqa: S104  # a setting asks for it
    ],
)
def test_a_name_of_an_attacker_that_leads_to_this_machine_is_refused(bound: str, host: str, status: int) -> None:
    with ExitStack() as stack:
        server = start_exporter(HealthCollector([], Settings()), bound, 0)
        stack.callback(server.server_close)
        stack.callback(server.shutdown)
        with closing(HTTPConnection("127.0.0.1", server.server_port, timeout=5.0)) as scrape:
            scrape.request("GET", "/metrics", headers={"Host": host})
            answer = scrape.getresponse()
            assert answer.status == status
            assert (b"lockstep_scrape_duration_seconds" in answer.read()) == (status == 200)
