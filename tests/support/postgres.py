"""A Postgres for tests: the programs of a wheel, on loopback, with a database for each test or Dagster home."""

from __future__ import annotations

import signal
import subprocess
import tempfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import psutil
import psycopg2  # type: ignore[import-untyped]  # it has no types

from lockstep.features.localdev.local_postgres import (
    USER,
    create_cluster,
    make_address,
    make_server_command,
    read_password,
)
from lockstep.features.localdev.processes import find_free_ports, start_child
from tests.support.installation import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Postgres:
    """A server whose data survive its kills.

    Attributes:
        folder: Holds its data and its log.
        port: Its port on loopback.
        process: The server.
    """

    folder: Path
    port: int
    process: subprocess.Popen[bytes]

    @classmethod
    @contextmanager
    def start(cls) -> Iterator[Self]:
        """Start a server for the block."""
        with tempfile.TemporaryDirectory(prefix="lockstep-postgres-", ignore_cleanup_errors=True) as name:
            folder, (port,) = Path(name), find_free_ports(1)
            folder.chmod(0o755)  # for a container without the capability to enter all folders
            create_cluster(folder / "data")
            server = cls(folder, port, _launch(folder, port))
            try:
                server.wait_until_it_answers()
                yield server
            finally:
                server.stop()

    def wait_until_it_answers(self) -> None:
        """Wait until the server answers, or fail with its log."""
        wait_until(lambda: self.process.poll() is not None or self._answers(), "Postgres answers")
        assert self.process.poll() is None, (self.folder / "postgres.log").read_text()

    def stop(self) -> None:
        """End the server immediately, as a crash does: it recovers at the next start."""
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the server for the block, and then restart it on its data."""
        self.stop()
        try:
            yield
        finally:
            self.process = _launch(self.folder, self.port)
            self.wait_until_it_answers()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Suspend all its processes for the block; their connections stay open."""
        whole = psutil.Process(self.process.pid)
        family = [whole, *whole.children()]
        for each in family:
            each.suspend()
        try:
            yield
        finally:
            for each in family:
                each.resume()

    def make_storage(self, home: Path) -> str:
        """Make a database for a Dagster home at the first call; return its part of dagster.yaml."""
        name = f"home_{zlib.crc32(str(home).encode())}"
        connection = self._connect()
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,))
            if cursor.fetchone() is None:
                cursor.execute(f"CREATE DATABASE {name}")
        connection.close()
        password = read_password(self.folder / "data")
        place = f"hostname: 127.0.0.1, port: {self.port}, db_name: {name}, username: {USER}, password: '{password}'"
        return f"\nstorage:\n  postgres:\n    postgres_db: {{{place}}}\n"

    def make_database(self, name: str) -> str:
        """Make an empty database and return its connection string."""
        connection = self._connect()
        with connection.cursor() as cursor:
            cursor.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            cursor.execute(f"CREATE DATABASE {name}")
        connection.close()
        return make_address(self.folder / "data", self.port, name)

    def _answers(self) -> bool:
        try:
            self._connect().close()
        except psycopg2.OperationalError:
            return False
        return True

    def _connect(self) -> psycopg2.extensions.connection:
        made = psycopg2.connect(make_address(self.folder / "data", self.port), connect_timeout=5)
        made.autocommit = True
        return made


def _launch(folder: Path, port: int) -> subprocess.Popen[bytes]:
    return start_child(make_server_command(folder / "data", port), folder=folder, log=folder / "postgres.log")
