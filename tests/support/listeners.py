"""The sockets on which processes listen, and those that another machine could reach."""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING

import msgspec
import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

LOOK_SECONDS = 0.5


class Listener(msgspec.Struct, frozen=True, order=True):
    """A socket that waits for connections or datagrams.

    Attributes:
        program: Name of the process.
        address: The address that the socket is bound to.
        port: Its port.
    """

    program: str
    address: str
    port: int

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it. Java binds a loopback address as an IPv6 address that maps it."""
        bound = ip_address(self.address.partition("%")[0])
        mapped = bound.ipv4_mapped if isinstance(bound, IPv6Address) else None
        return (mapped or bound).is_loopback


def list_listeners(pids: Iterable[int]) -> set[Listener]:
    """List the listeners of living processes: TCP sockets that listen, and UDP sockets without a peer."""
    listeners = set[Listener]()
    for pid in pids:
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            process = psutil.Process(pid)
            program = process.name()
            for socket in process.net_connections("inet"):
                waits = socket.status == psutil.CONN_LISTEN or (socket.status == psutil.CONN_NONE and not socket.raddr)
                if waits and socket.laddr:
                    listeners.add(Listener(program, socket.laddr.ip, socket.laddr.port))
    return listeners


@contextmanager
def watch_listeners(list_pids: Callable[[], Iterable[int]]) -> Iterator[set[Listener]]:
    """Collect the listeners of changing processes while the block lasts."""
    listeners = set[Listener]()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(LOOK_SECONDS):
            listeners.update(list_listeners(list_pids()))

    watcher = threading.Thread(target=watch, name="listeners", daemon=True)
    watcher.start()
    try:
        yield listeners
    finally:
        over.set()
        watcher.join()


def find_reachable(listeners: Iterable[Listener]) -> list[Listener]:
    """List the listeners that another machine could reach."""
    return sorted(listener for listener in listeners if not listener.is_local)
