"""An older broker: a TCP proxy that reduces the API versions offered by a real broker.

The client then sends older requests, which the broker answers like an older broker. Requests of some API keys can be
left unanswered.
"""

from __future__ import annotations

import asyncio
import struct
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lockstep.features.localdev.broker import Broker
from lockstep.features.localdev.processes import find_free_ports
from tests.support.link import serve

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

API_VERSIONS = 18
METADATA = 3
COMPACT_SINCE = 3
"""From this version on, an answer about API versions has compact arrays and tagged fields."""
BEFORE_TOPIC_IDS: Mapping[int, int] = {METADATA: 9}
"""Metadata answers have topic ids from version 10 on."""


@dataclass
class CappingProxy:
    """Caps the versions of some API keys.

    Attributes:
        target: Port of the broker; set it before the first connection.
        caps: Highest version by API key.
        unanswered: API keys whose requests never reach the broker, while their connection stays.
    """

    caps: Mapping[int, int]
    target: int = 0
    unanswered: frozenset[int] = frozenset()
    _asked: dict[tuple[int, int], int] = field(default_factory=dict)

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection until either side ends it."""
        with suppress(ConnectionError, asyncio.CancelledError, asyncio.IncompleteReadError), closing(writer):
            answers, requests = await asyncio.open_connection("127.0.0.1", self.target)
            with closing(requests):
                await asyncio.gather(self._ask(reader, requests), self._answer(answers, writer, id(requests)))

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            frame = await _read_frame(reader)
            key, version, correlation = struct.unpack_from(">hhi", frame)
            if key == API_VERSIONS:
                self._asked[id(writer), correlation] = version
            if key not in self.unanswered:
                await _write_frame(writer, frame)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int) -> None:
        while True:
            frame = await _read_frame(reader)
            (correlation,) = struct.unpack_from(">i", frame)
            version = self._asked.pop((connection, correlation), None)
            await _write_frame(writer, frame if version is None else cap_versions(frame, version, self.caps))


def cap_versions(answer: bytes, version: int, caps: Mapping[int, int]) -> bytes:
    """Reduce the highest versions in an answer about API versions.

    Args:
        answer: Correlation id, error code, and the array of (key, lowest, highest version).
        version: Version of the request.
        caps: Highest version by API key.
    """
    capped = bytearray(answer)
    at = 6
    if version < COMPACT_SINCE:
        (count,) = struct.unpack_from(">i", answer, at)
        at = at + 4
        size = 6
    else:
        count = answer[at] - 1
        at = at + 1
        size = 7  # each entry ends with an empty list of tagged fields
        assert count < 127, "the length of the array is more than a byte"
    for _ in range(count):
        key, _, highest = struct.unpack_from(">hhh", answer, at)
        struct.pack_into(">h", capped, at + 4, min(highest, caps.get(key, highest)))
        at += size
    return bytes(capped)


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


async def _write_frame(writer: asyncio.StreamWriter, frame: bytes) -> None:
    writer.write(struct.pack(">i", len(frame)) + frame)
    await writer.drain()


@contextmanager
def open_older_broker(
    folder: Path, caps: Mapping[int, int] = BEFORE_TOPIC_IDS
) -> Iterator[tuple[Broker, CappingProxy, str]]:
    """Start a broker and a proxy in front of it; yield the broker, the proxy, and the proxy's address."""
    plain, port = find_free_ports(2)
    advertised = f"PLAINTEXT://127.0.0.1:{plain},OLD://127.0.0.1:{port}"
    settings = {"advertised.listeners": advertised}
    with (
        open_capping_proxy(port, caps) as proxy,
        Broker.start(folder, port=plain, listeners={"OLD": "PLAINTEXT"}, settings=settings) as broker,
    ):
        proxy.target = int(broker.address("OLD").rpartition(":")[2])
        yield broker, proxy, f"127.0.0.1:{port}"


@contextmanager
def open_capping_proxy(port: int, caps: Mapping[int, int]) -> Iterator[CappingProxy]:
    """Open the proxy on a port of loopback, until the block ends."""
    proxy = CappingProxy(caps)
    with serve(proxy.connect, port):
        yield proxy
