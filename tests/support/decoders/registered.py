"""Registries for tests: in memory, and behind HTTP with the documented REST paths.

Both register schemas as a producer's serializer does, and assign ids. `frame` and `protobuf_frame` make the messages of
such a serializer.
"""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import UUID

from fastavro import parse_schema, schemaless_writer

from lockstep.declare.decoders.base import Decode, Registry
from lockstep.declare.decoders.schema_registry import FramedDecoder
from lockstep.decoders import RegisteredSchema

FIRST_ID = 101


@dataclass(frozen=True)
class InMemory(Registry):
    """Schemas by id, without counters; no schema is ever lost."""

    schemas: tuple[RegisteredSchema, ...]

    def schema(self, schema_id: int) -> RegisteredSchema | None:
        place = schema_id - FIRST_ID
        return self.schemas[place] if 0 <= place < len(self.schemas) else None

    def schema_by_guid(self, guid: UUID) -> RegisteredSchema | None:
        return self.schema(guid.int)


@dataclass(frozen=True)
class Connected:
    """A decoder in an installation with a schema registry."""

    decoder: FramedDecoder
    registry: Registry

    def build(self, message_type: object) -> Decode:
        return self.decoder.build_with(self.registry, message_type)


def guid_header(schema_id: int = FIRST_ID) -> bytes:
    """Return the header of a serializer that sends GUIDs; in these registries they equal the ids."""
    return b"\x01" + UUID(int=schema_id).bytes


def avro(schema: object) -> RegisteredSchema:
    return RegisteredSchema("AVRO", json.dumps(schema))


def frame(schema: Any, message: object, schema_id: int = FIRST_ID) -> bytes:
    """Make an Avro message as a serializer sends it."""
    body = BytesIO()
    schemaless_writer(body, parse_schema(schema), message)
    return b"\x00" + schema_id.to_bytes(4, "big") + body.getvalue()


def protobuf_frame(body: bytes, path: Sequence[int] = (0,), schema_id: int = FIRST_ID) -> bytes:
    """Make a Protobuf message as a serializer sends it: the first message of a schema is a single zero."""
    numbers = [] if tuple(path) == (0,) else [len(path), *path]
    indexes = b"".join(zigzag(number) for number in numbers) or b"\x00"
    return b"\x00" + schema_id.to_bytes(4, "big") + indexes + body


def zigzag(number: int) -> bytes:
    """Encode a number as a zigzag varint."""
    left = (number << 1) ^ (number >> 63)
    out = b""
    while left > 0x7F:
        left, out = left >> 7, out + bytes([left & 0x7F | 0x80])
    return out + bytes([left])


@dataclass
class HttpSchemas:
    """A registry behind HTTP.

    Attributes:
        url: Its address.
        asked: Paths of all requests, in order.
        refusing: Answers (status, body) to the next requests, instead of the real answers.
        authorization: Required value of the header; None accepts any request.
        headers: The headers of all requests, in order.
        hold: While it is not set, requests wait.
        incompatible: Subjects to which no schema can be added.
        is_read_only: Whether accounts may not register.
        is_write_only: Whether accounts may register, but not search for a schema.
    """

    url: str = ""
    asked: list[str] = field(default_factory=list)
    refusing: list[tuple[int, bytes]] = field(default_factory=list)
    authorization: str | None = None
    headers: list[dict[str, str]] = field(default_factory=list)
    hold: threading.Event = field(default_factory=threading.Event)
    incompatible: set[str] = field(default_factory=set)
    is_read_only: bool = False
    is_write_only: bool = False
    _subjects: dict[str, list[dict[str, object]]] = field(default_factory=dict)
    _by_id: list[dict[str, object]] = field(default_factory=list)

    def register(self, subject: str, text: str, kind: str = "AVRO", references: Sequence[Any] = ()) -> int:
        """Register a schema and return its id."""
        schema: dict[str, object] = {"schema": text}
        if kind != "AVRO":
            schema["schemaType"] = kind
        if references:
            schema["references"] = list(references)
        versions = self._subjects.setdefault(subject, [])
        versions.append(schema)
        self._by_id.append(schema)
        return FIRST_ID + len(self._by_id) - 1

    def answer(self, path: str, authorization: str | None) -> tuple[int, bytes]:
        """Return status and body, as the REST interface documents them."""
        self.asked.append(path)
        if self.refusing:
            return self.refusing.pop(0)
        if self.authorization is not None and authorization != self.authorization:
            return _error(401, 401, "Unauthorized")
        match urlsplit(path).path.strip("/").split("/"):
            case ["schemas", "ids", schema_id]:
                return self._found(self._by_id, int(schema_id) - FIRST_ID, 40403)
            case ["schemas", "guids", guid]:
                return self._found(self._by_id, UUID(guid).int - FIRST_ID, 40403)
            case ["subjects", subject, "versions", version]:
                return self._found(self._subjects.get(unquote(subject), []), int(version) - 1, 40402)
        return _error(404, 404, "HTTP 404 Not Found")

    def take(self, path: str, authorization: str | None, body: bytes) -> tuple[int, bytes]:
        """Return the response to a POST, which registers a schema or requests its id."""
        if self.refusing or self.authorization not in {None, authorization}:
            return self.answer(path, authorization)
        self.asked.append(path)
        schema = json.loads(json.loads(body)["schema"])
        parts = urlsplit(path).path.strip("/").split("/")
        subject = unquote(parts[1])
        versions = self._subjects.get(subject, [])
        if self.is_write_only and len(parts) == 2:
            return _error(403, 40301, "User is denied operation Read")
        for version in versions:
            if json.loads(str(version["schema"])) == schema:
                number = FIRST_ID + next(at for at, each in enumerate(self._by_id) if each is version)
                return 200, json.dumps({"subject": subject, "id": number}).encode()
        if len(parts) == 2:  # without /versions
            return _error(404, 40403 if versions else 40401, "not found")
        return self._register(subject, schema)

    def _register(self, subject: str, schema: object) -> tuple[int, bytes]:
        if self.is_read_only:
            return _error(403, 40301, "User is denied operation Write")
        if subject in self.incompatible:
            return _error(409, 409, "Schema being registered is incompatible: READER_FIELD_MISSING_DEFAULT_VALUE note")
        return 200, json.dumps({"id": self.register(subject, json.dumps(schema))}).encode()

    def forget(self) -> None:
        """Remove the schemas of all subjects: the next registration gets another id."""
        self._subjects.clear()

    def _found(self, schemas: Sequence[dict[str, object]], place: int, not_found: int) -> tuple[int, bytes]:
        if 0 <= place < len(schemas):
            return 200, json.dumps(schemas[place]).encode()
        return _error(404, not_found, "not found")


def _error(status: int, code: int, message: str) -> tuple[int, bytes]:
    return status, json.dumps({"error_code": code, "message": message}).encode()


def _make_handler(schemas: HttpSchemas) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            schemas.hold.wait(30)
            self.respond(*schemas.answer(self.path, self.headers.get("Authorization")))

        def do_POST(self) -> None:
            schemas.hold.wait(30)
            content = self.rfile.read(int(self.headers["Content-Length"]))
            self.respond(*schemas.take(self.path, self.headers.get("Authorization"), content))

        def respond(self, status: int, body: bytes) -> None:
            schemas.headers.append(dict(self.headers))
            with contextlib.suppress(ConnectionError):
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                if 300 <= status < 400:
                    self.send_header("Location", f"{schemas.url}/elsewhere")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name of the base class
            pass

    return Handler


@contextlib.contextmanager
def http_schemas(certificate: Path | None = None) -> Iterator[HttpSchemas]:
    """Serve a registry on a free port of this machine, over TLS if a file with certificate and key is given."""
    schemas = HttpSchemas()
    schemas.hold.set()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _make_handler(schemas))
    server.daemon_threads = True
    schemas.url = f"http://127.0.0.1:{server.server_port}"
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        schemas.url = schemas.url.replace("http", "https")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield schemas
    finally:
        schemas.hold.set()
        server.shutdown()
        server.server_close()
        thread.join()
