"""A network link that can be slow, break, or carry nothing: a TCP proxy in front of a server."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

CHUNK_BYTES = 16 * 1024
LOST_BYTES = 3  # of a broken answer: from its body, or from the end of its header


@dataclass
class Link:
    """Settings of a link; they also apply to existing connections.

    Attributes:
        port: The proxy accepts connections here, on loopback.
        target: Port that it connects to; set it before the first connection.
        delay_seconds: Delay of each byte.
        bytes_per_second: Throughput of each connection and direction; None for no limit.
        carries: While it is not set, connections stay open and nothing arrives.
        breaks_each: One of this many pieces of answers loses its end, and its connection ends; 0 for none.
        connections: Number of connections so far.
        asked: The first lines of HTTP requests so far, such as `GET /bucket/key`.
    """

    port: int
    target: int = 0
    delay_seconds: float = 0.0
    bytes_per_second: float | None = None
    carries: threading.Event = field(default_factory=threading.Event)
    breaks_each: int = 0
    connections: int = 0
    asked: list[str] = field(default_factory=list)
    _answered: Iterator[int] = field(default_factory=lambda: count(1))

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection until either side ends it."""
        self.connections += 1
        with suppress(ConnectionError, asyncio.CancelledError), closing(writer):  # cancelled at the end of the link
            answers, requests = await asyncio.open_connection("127.0.0.1", self.target)
            with closing(requests):
                await asyncio.gather(
                    self._carry(reader, requests, noted=self._note), self._carry(answers, writer, breaks=self._breaks)
                )

    def _note(self, chunk: bytes) -> None:
        line, end, _ = chunk.partition(b" HTTP/1.1\r\n")
        if end:
            self.asked.append(line.decode(errors="replace"))

    def _breaks(self) -> bool:
        return self.breaks_each > 0 and next(self._answered) % self.breaks_each == 0

    async def _carry(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        breaks: Callable[[], bool] = lambda: False,
        noted: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        on_its_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=1_000)
        delivery = asyncio.create_task(self._deliver(on_its_way, writer))
        with suppress(ConnectionError):
            while chunk := await reader.read(CHUNK_BYTES):
                noted(chunk)
                is_broken = breaks()
                due = asyncio.get_running_loop().time() + self.delay_seconds
                await on_its_way.put((due, chunk[:-LOST_BYTES] if is_broken else chunk))
                if is_broken:
                    break
        await on_its_way.put((0.0, b""))
        await delivery

    async def _deliver(self, on_its_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        clock = asyncio.get_running_loop().time
        with suppress(ConnectionError):
            while (item := await on_its_way.get())[1]:
                due, chunk = item
                await asyncio.sleep(max(0.0, due - clock()))
                while not self.carries.is_set():  # noqa: ASYNC110  # another thread sets it
                    await asyncio.sleep(0.05)
                writer.write(chunk)
                await writer.drain()
                if self.bytes_per_second is not None:
                    await asyncio.sleep(len(chunk) / self.bytes_per_second)
        writer.close()


@contextmanager
def open_link(port: int) -> Iterator[Link]:
    """Open a link that carries everything, until the block ends."""
    link = Link(port)
    link.carries.set()
    with serve(link.connect, port):
        yield link


@contextmanager
def serve(
    connect: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], port: int
) -> Iterator[None]:
    """Serve connections to a port of loopback on a separate thread, until the block ends."""
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(connect, "127.0.0.1", port))
    thread = threading.Thread(target=loop.run_forever, name=f"port {port}")
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left))
        loop.close()
