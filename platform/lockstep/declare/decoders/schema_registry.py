"""Confluent wire format, registry protocol and HTTP client."""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, TypeVar
from urllib.parse import quote
from uuid import UUID

import msgspec
from typing_extensions import override

from lockstep.declare.decoders.base import (
    Decode,
    DecodeCause,
    Decoder,
    Headers,
    RegisteredSchema,
    Registry,
    SchemaReference,
    Undecodable,
)
from lockstep.declare.decoders.wire_formats import FRAME_BYTES, GUID_FRAME_BYTES, describe_format
from lockstep.errors import LockstepError, RegistryUnreachable, SettingsError
from lockstep.time_limit import describe_silence, run_within

if TYPE_CHECKING:
    from requests import PreparedRequest, Response


SECOND_LOOK_SECONDS: Final = 0.5
"""A follower of the registry may lag by milliseconds behind the instance that assigned the id."""
SECOND_LOOKS_MAX: Final = 20
"""Per worker. More unknown ids are foreign data, and a pause for each would stop the stream."""
UNKNOWN_SECONDS: Final = 60.0
"""How long an unknown id is not requested again; it may be registered later."""
UNKNOWN_IDS_MAX: Final = 10_000
"""Unknown ids remembered at most: random bytes must not fill a worker's memory."""


@dataclass(frozen=True)
class FramedDecoder(Decoder):
    """A decoder of messages with a schema id, in front of each or in a header."""

    reads_headers: ClassVar[bool] = True

    @override
    def build(self, message_type: object) -> Decode:
        """Build the decode function of a declaration that is checked, without a registry."""
        return self.build_with(None, message_type)

    @abstractmethod
    def build_with(self, registry: Registry | None, message_type: object) -> Decode:
        """Build the decode function with the installation's schema registry; otherwise as `Decoder.build`."""


def build_decode(decoder: Decoder, registry: Registry | None, message_type: object) -> Decode:
    """Build the decode function of a stream in an installation.

    Args:
        decoder: The stream's decoder.
        registry: The installation's schema registry, if it has one.
        message_type: The stream's message type.
    """
    if isinstance(decoder, FramedDecoder):
        return decoder.build_with(registry, message_type)
    return decoder.build(message_type)


VALUE_SCHEMA_ID: Final = "__value_schema_id"
"""The header in which serializers put the schema's id, or its GUID, instead of in front of the value."""
FOREIGN_IDS: Final = "apicurio.value."
"""Headers by which another registry's serializers name a schema."""
ID_BYTES: Final = {0: FRAME_BYTES, 1: GUID_FRAME_BYTES}
"""Bytes of an id with its magic byte, by the magic byte: a number, or a GUID."""

MakeReader = Callable[[RegisteredSchema, int], Decode]
"""From a schema and the bytes of an id to the function that reads a whole frame behind such an id.

Raises Undecodable when no message of this schema can be read."""


class Framed:
    """Decodes framed values; each id is requested once per worker."""

    def __init__(
        self, registry: Registry | None, make_reader: MakeReader, find_body: Callable[[bytes, int], int]
    ) -> None:
        """See the class.

        Args:
            registry: The registry; without one only the declaration can be checked.
            make_reader: Makes the reader of a schema.
            find_body: The position of the message in a frame, from the position after the id.
        """
        self._registry = registry
        self._make_reader = make_reader
        self._find_body = find_body
        self._readers: dict[bytes, Decode] = {}
        self._unknown: dict[bytes, float] = {}
        self._second_looks = SECOND_LOOKS_MAX

    def decode(self, value: bytes, headers: Headers = ()) -> object:
        """The message in a frame.

        Raises:
            Undecodable: The value is not a frame, or contains no message of the stream.
            RegistryUnreachable: The registry could not return the schema of the id.
        """
        if headers and (in_header := _find_schema_id(headers)) is not None:
            return self._decode_with(in_header, value)
        # The raw id is the key: one look-up checks the magic byte and finds the schema.
        read = self._readers.get(value[:FRAME_BYTES])
        if read is None:
            _check_frame(value, headers)
            read = self._find_reader(value[:FRAME_BYTES], value)
        return read(value)

    def _decode_with(self, in_header: bytes, value: bytes) -> object:
        """The message of a value whose frame is in a header: the same as if it stood in front of it."""
        size = ID_BYTES.get(in_header[0] if in_header else -1)
        if size is None or len(in_header) < size or self._find_body(in_header, size) != len(in_header):
            problem = f"header {VALUE_SCHEMA_ID} = {in_header[:40].hex()} is not a schema id"
            raise Undecodable(DecodeCause.UNKNOWN_SCHEMA_ID, problem)
        schema_id = in_header[:size]
        read = self._readers.get(schema_id) or self._find_reader(schema_id, b"")
        return read(in_header + value)

    def _find_reader(self, schema_id: bytes, value: bytes) -> Decode:
        """The reader of an id that is new to this worker."""
        registered = self._find_schema(schema_id, value)
        try:
            reader = self._make_reader(registered, len(schema_id))
        except Undecodable as unfit:
            reader = _refusing(unfit.cause, f"schema {_format_id(schema_id)}: {unfit}")
        self._readers[schema_id] = reader
        return reader

    def _find_schema(self, schema_id: bytes, value: bytes) -> RegisteredSchema:
        now = time.monotonic()
        if now - self._unknown.get(schema_id, -UNKNOWN_SECONDS) >= UNKNOWN_SECONDS:
            registered = self._ask(schema_id)
            if registered is not None:
                return registered
            # Random bytes would fill the worker's memory.
            if len(self._unknown) >= UNKNOWN_IDS_MAX:
                self._unknown.clear()
            self._unknown[schema_id] = time.monotonic()
        remark = ""
        if schema_id == NO_ID:
            remark = describe_format(value)
        problem = f"the schema registry knows no schema {_format_id(schema_id, 'id ')}{remark}"
        raise Undecodable(DecodeCause.UNKNOWN_SCHEMA_ID, problem)

    def _ask(self, schema_id: bytes) -> RegisteredSchema | None:
        if self._registry is None:
            raise RegistryUnreachable("no schema registry is connected", next_step=_NAME_ONE)
        schema = _answer_of(self._registry, schema_id)
        if schema is None and self._second_looks > 0:  # a follower of the registry may lag
            # Few per worker: more unknown ids are foreign data, and each pause stops the stream.
            self._second_looks -= 1
            time.sleep(SECOND_LOOK_SECONDS)
            schema = _answer_of(self._registry, schema_id)
        return schema


NO_ID: Final = bytes(FRAME_BYTES)
"""The id 0, which no registry assigns: the start of a longer id, or of no frame at all."""


def _find_schema_id(headers: Headers) -> bytes | None:
    """The id in a record's headers, with its magic byte; None if it has none.

    Raises:
        Undecodable: There are several.
    """
    ids = {content for name, content in headers if name == VALUE_SCHEMA_ID and content is not None}
    if len(ids) > 1:
        raise Undecodable(DecodeCause.UNKNOWN_SCHEMA_ID, f"several headers {VALUE_SCHEMA_ID} that differ")
    if ids:
        return ids.pop()
    return None


def _format_id(schema_id: bytes, prefix: str = "") -> str:
    if len(schema_id) == FRAME_BYTES:
        return f"{prefix}{int.from_bytes(schema_id[1:], 'big')}"
    return f"GUID {UUID(bytes=schema_id[1:])}"


def _answer_of(registry: Registry, schema_id: bytes) -> RegisteredSchema | None:
    """The registry's answer. No error of its client is a verdict on a message, not even a ValueError."""
    try:
        if len(schema_id) == FRAME_BYTES:
            return registry.schema(int.from_bytes(schema_id[1:], "big"))
        return registry.schema_by_guid(UUID(bytes=schema_id[1:]))
    except LockstepError:
        raise
    except Exception as error:
        problem = f"the client of the schema registry failed: {type(error).__name__}: {error}"
        raise RegistryUnreachable(problem, next_step="report this as an error of lockstep") from error


def check_registry(decoder: Decoder, registry: Registry | None) -> None:
    """Refuse a decoder that needs a schema registry, in an installation without one.

    Raises:
        SettingsError: The settings name no schema registry.
    """
    if isinstance(decoder, FramedDecoder) and registry is None:
        name = type(decoder).__name__
        raise SettingsError(f"{name}() needs a schema registry and none is set", next_step=_NAME_ONE)


_NAME_ONE: Final = "set url in the [registry] part of the settings, or LOCKSTEP_REGISTRY__URL"


def _check_frame(value: bytes, headers: Headers) -> None:
    """Refuse a value that does not start with a frame.

    Raises:
        Undecodable: It does not; the error names the format that its start resembles.
    """
    if value[:1] == b"\x00" and len(value) >= FRAME_BYTES:
        return
    if value[:1] in {b"", b"\x00"}:
        problem = f"a frame starts with {FRAME_BYTES} bytes, this has {len(value)}"
        raise Undecodable(DecodeCause.TRUNCATED, problem)
    foreign = [name for name, _ in headers if name.startswith(FOREIGN_IDS)]
    if foreign:
        remark = f"; header {foreign[0]} is of Apicurio's registry (docs/decoders.md)"
    else:
        remark = describe_format(value)
    problem = f"a frame starts with 0x00, this with 0x{value[0]:02x}{remark or NO_FRAME}"
    raise Undecodable(DecodeCause.UNKNOWN_MAGIC_BYTE, problem)


NO_FRAME: Final = "; a message without a frame has no schema id, in front of it or in a header (docs/decoders.md)"


def _refusing(cause: DecodeCause, problem: str) -> Decode:
    def refuse(value: bytes) -> object:
        del value
        raise Undecodable(cause, problem)

    return refuse


SUBJECT_NOT_FOUND: Final = 40401
SCHEMA_NOT_FOUND: Final = 40403
"""The only answer about an id; any proxy or wrong path may send a bare 404."""
ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024
"""Far above the size of any schema; below what would hurt a worker."""
CHUNK_BYTES: Final = 65_536
UNENDING: Final = "an answer that does not end"
TRIES_SHARE_MAX: Final = 1.5
"""Above the time that all tries may take, of the timeout: the last try may connect, wait and read for a third each."""
REFERENCES_MAX: Final = 200
"""Schemas that one schema may build on, also indirectly."""
PAUSE_SECONDS_FIRST = 0.2
PAUSE_SECONDS_MAX = 2.0
PASSING: Final = frozenset({408, 429, 500, 502, 503, 504})
"""Responses that may be transient."""
OK: Final = 200
UNAUTHORIZED: Final = 401
FORBIDDEN: Final = 403
DENIED: Final = frozenset({UNAUTHORIZED, FORBIDDEN})
REGISTRY_JSON: Final = "application/vnd.schemaregistry.v1+json"
SHOWN_MAX: Final = 80
"""Characters of an issuer's error that are shown."""
REFUSAL_SHOWN_MAX: Final = 400
"""Characters of a registry's reason that are shown: it names the incompatible field."""
TOKEN_SHARE: Final = 0.8
"""Share of the life of a token after which the process requests the next token."""


_PUT_IT_THERE: Final = "put it there, readable for the user that runs lockstep, on every machine that runs tasks"


class _Reference(msgspec.Struct):
    name: str
    subject: str
    version: int


class _Answer(msgspec.Struct, rename={"text": "schema", "kind": "schemaType"}):
    text: str
    kind: str = "AVRO"
    references: list[_Reference] = []


class _Refusal(msgspec.Struct):
    error_code: int = 0
    message: str = ""


class _Id(msgspec.Struct):
    id: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]


_Body = TypeVar("_Body", _Answer, _Id, _Refusal)


class SchemaRefused(Exception):  # a target of rows names its remedy
    """The registry does not take a schema, for a reason that it names."""


class _Passing(Exception):  # a transient state of the registry, which is retried
    """The registry did not answer this time."""


@dataclass(frozen=True)
class TokenClient:
    """A client of OpenID Connect that requests tokens by its credentials (RFC 6749, section 4.4).

    Attributes:
        issuer_url: Address of the tokens.
        client_id: Its name at the issuer.
        secret_from: Source of its secret: "file:" and an absolute path, or "env:" and a variable.
        scope: Scope of the tokens; empty for the issuer's own.
    """

    issuer_url: str
    client_id: str
    secret_from: str
    scope: str = ""


class _TokenAnswer(msgspec.Struct):
    access_token: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._~+/-]+=*\Z")]
    """Of characters that a header may have."""
    expires_in: float = 300.0
    """RFC 6749 only recommends it; an issuer without it has its tokens renewed every few minutes."""


def _send_as_it_is(request: PreparedRequest) -> PreparedRequest:
    return request


class _TokenRefusal(msgspec.Struct):
    error: str


@dataclass(frozen=True)
class _Token:
    text: str
    renewed_at: float


_TOKENS: Final[dict[TokenClient, _Token]] = {}
"""The tokens of this process."""


@dataclass(frozen=True)
class HttpRegistry(Registry):
    """A schema registry at an address.

    Attributes:
        url: Address, for example http://registry:8081.
        user: User, if the registry requires one.
        password_from: Source of the password: "file:" and an absolute path, or "env:" and a variable.
            The password itself is read for each request, and not cached.
        client: The client whose tokens are sent; None without tokens.
        headers: Further headers of each request.
        ca_file: Certificates to trust instead of the system's, for registry and issuer.
        timeout_seconds: Timeout of one request, retries included.
    """

    url: str
    user: str = ""
    password_from: str = ""
    client: TokenClient | None = None
    headers: tuple[tuple[str, str], ...] = ()
    ca_file: Path | None = None
    timeout_seconds: float = 10.0

    @override
    def schema(self, schema_id: int) -> RegisteredSchema | None:
        return self._find_schema(f"/schemas/ids/{schema_id}")

    def find_id(self, subject: str, schema: str) -> int | None:
        """The id of an Avro schema of a subject; None if the subject does not have it.

        Raises:
            SchemaRefused: This account may not read the subject.
            RegistryUnreachable: As `schema`.
        """
        status, body = self._request(f"/subjects/{quote(subject, safe='')}", _Answer(schema))
        if status == OK:
            return self._decode(status, body, _Id).id
        if status == FORBIDDEN:
            raise SchemaRefused(f"HTTP {status}: this account may not read {subject}")
        if status not in DENIED and self._decode(status, body, _Refusal).error_code in {
            SUBJECT_NOT_FOUND,
            SCHEMA_NOT_FOUND,
        }:
            return None
        raise self._refuse(status)

    def register(self, subject: str, schema: str) -> int:
        """Register an Avro schema with a subject; returns its id, also if the subject has it already.

        Raises:
            SchemaRefused: It is not compatible with earlier schemas, or this account may not register.
            RegistryUnreachable: As `schema`.
        """
        status, body = self._request(f"/subjects/{quote(subject, safe='')}/versions", _Answer(schema))
        if status == OK:
            return self._decode(status, body, _Id).id
        if status == FORBIDDEN:
            raise SchemaRefused(f"HTTP {status}: this account may not register it")
        if status not in {409, 422}:  # incompatible, invalid
            raise self._refuse(status)
        raise SchemaRefused(f"HTTP {status}, {self._decode(status, body, _Refusal).message[:REFUSAL_SHOWN_MAX]}")

    @override
    def schema_by_guid(self, guid: UUID) -> RegisteredSchema | None:
        return self._find_schema(f"/schemas/guids/{guid}")

    def _find_schema(self, path: str) -> RegisteredSchema | None:
        """The schema at a path with all its references; None for an unknown id."""
        answer = self._asked(path)
        if answer is None:
            return None
        found: dict[tuple[str, int], SchemaReference] = {}
        self._collect(answer.references, found, set())
        return RegisteredSchema(answer.kind, answer.text, tuple(found.values()))

    def _collect(
        self,
        references: list[_Reference],
        found: dict[tuple[str, int], SchemaReference],
        under_way: set[tuple[str, int]],
    ) -> None:
        for reference in references:
            key = (reference.subject, reference.version)
            if key in found or key in under_way:
                continue
            under_way.add(key)
            if len(under_way) > REFERENCES_MAX:
                raise self._unreachable(f"a schema builds on more than {REFERENCES_MAX} others")
            path = f"/subjects/{quote(reference.subject, safe='')}/versions/{reference.version}?deleted=true"
            answer = self._asked(path)
            if answer is None:
                raise self._unreachable(f"{reference.subject} version {reference.version}, on which a schema builds")
            self._collect(answer.references, found, under_way)
            found[key] = SchemaReference(reference.name, answer.text)

    def _asked(self, path: str) -> _Answer | None:
        """The schema at a path; None for an unknown id."""
        return self._judged(*self._request(path))

    def _request(self, path: str, schema: _Answer | None = None) -> tuple[int, bytes]:
        """Status and body of the response to a request, repeated while the registry fails."""
        from tenacity import Retrying, retry_if_exception_type, stop_before_delay, wait_random_exponential

        deadline = time.monotonic() + self.timeout_seconds
        repeated = Retrying(
            retry=retry_if_exception_type(_Passing),
            # The last try has a third of the time left: one cut short would tell of the timeout, not of the registry.
            stop=stop_before_delay(self.timeout_seconds * 2 / 3),
            wait=wait_random_exponential(PAUSE_SECONDS_FIRST, PAUSE_SECONDS_MAX),
            reraise=True,
        )
        try:
            return run_within(
                TRIES_SHARE_MAX * self.timeout_seconds, lambda: repeated(self._once, path, schema, deadline)
            )
        except TimeoutError as error:
            silence = describe_silence("it", TRIES_SHARE_MAX * self.timeout_seconds, verb="end its answer")
            raise self._unreachable(silence) from error
        except _Passing as error:
            raise self._unreachable(f"{error}, for {self.timeout_seconds:g} s") from error

    def _once(self, path: str, schema: _Answer | None, deadline: float) -> tuple[int, bytes]:
        headers = {"Accept": f"{REGISTRY_JSON}, application/json", **dict(self.headers)}
        content = None if schema is None else msgspec.json.encode(schema)
        if content is not None:
            headers["Content-Type"] = REGISTRY_JSON
        login = None
        last_token = None
        token = None
        if self.client is not None:
            last_token = _TOKENS.get(self.client)
            token = self._find_token(self.client, deadline)
            headers["Authorization"] = f"Bearer {token.text}"
        elif self.user:
            login = (self.user, self._read_secret(self.password_from))
        address = self.url.rstrip("/") + path
        status, body = self._exchange(address, deadline, headers=headers, login=login, content=content)
        if status in PASSING:
            raise _Passing(f"HTTP {status}")
        if self.client is not None and status == UNAUTHORIZED and token is last_token:
            _TOKENS.pop(self.client, None)
            raise _Passing(f"HTTP {status} to a token that was valid before")
        return status, body

    def _find_token(self, client: TokenClient, deadline: float) -> _Token:
        """The token of this process; a new token if that expires soon."""
        token = _TOKENS.get(client)
        if token is None or time.monotonic() >= token.renewed_at:
            form = {"grant_type": "client_credentials"}
            if client.scope:
                form["scope"] = client.scope
            login = client.client_id, self._read_secret(client.secret_from)
            status, body = self._exchange(client.issuer_url, deadline, headers={}, login=login, content=form)
            token = _TOKENS[client] = self._read_token(client, status, body)
        return token

    def _read_token(self, client: TokenClient, status: int, body: bytes) -> _Token:
        if status in PASSING:
            raise _Passing(f"HTTP {status} from {client.issuer_url}")
        try:
            if status == OK:
                answer = msgspec.json.decode(body, type=_TokenAnswer)
                return _Token(answer.access_token, time.monotonic() + TOKEN_SHARE * answer.expires_in)
            problem = repr(msgspec.json.decode(body, type=_TokenRefusal).error[:SHOWN_MAX])
        except msgspec.MsgspecError as error:
            problem = str(error)
        raise self._unreachable(
            f"{client.issuer_url} issued no token: HTTP {status}, {problem}",
            "check client_id, client_secret, scope and issuer_url in the [registry] part of the settings",
        )

    def _exchange(
        self,
        address: str,
        deadline: float,
        *,
        headers: Mapping[str, str],
        login: tuple[str, str] | None,
        content: Mapping[str, str] | bytes | None = None,
    ) -> tuple[int, bytes]:
        """Status and body of a response: to a POST of a form or a document, or to a GET without content."""
        import requests
        from requests.auth import HTTPBasicAuth
        from requests.exceptions import ConnectionError as NoConnection
        from urllib3.exceptions import HTTPError as BrokenOff

        method = "GET" if content is None else "POST"
        seconds = max(self.timeout_seconds / 3, deadline - time.monotonic())
        try:
            with requests.request(
                method,
                address,
                headers=dict(headers),
                data=content,
                # Encoded here: of a text requests takes Latin-1 alone. With None it reads a login from ~/.netrc.
                auth=_send_as_it_is if login is None else HTTPBasicAuth(*(part.encode() for part in login)),
                timeout=min(seconds, self.timeout_seconds / 2),
                verify=str(self.ca_file) if self.ca_file else True,
                allow_redirects=False,  # only the configured address receives the secret
                stream=True,
            ) as response:
                return response.status_code, _body(response, deadline)
        except requests.exceptions.SSLError as error:
            raise self._unreachable(f"TLS: {error}") from error
        except (NoConnection, requests.exceptions.Timeout, BrokenOff) as error:
            raise _Passing(f"no answer ({type(error).__name__})") from error
        except (requests.exceptions.RequestException, OSError) as error:
            raise self._unreachable(str(error)) from error

    def _read_secret(self, source: str) -> str:
        kind, _, place = source.partition(":")
        try:
            secret = _read_place(kind, place)
        except (OSError, UnicodeDecodeError) as error:
            raise self._unreachable(f"its password cannot be read: {type(error).__name__}", _PUT_IT_THERE) from None
        if not secret:
            raise self._unreachable(f"there is no password in {source}", _PUT_IT_THERE)
        return secret

    def _judged(self, status: int, body: bytes) -> _Answer | None:
        if status == OK:
            return self._decode(status, body, _Answer)
        if status not in DENIED and self._decode(status, body, _Refusal).error_code == SCHEMA_NOT_FOUND:
            return None
        raise self._refuse(status)

    def _decode(self, status: int, body: bytes, kind: type[_Body]) -> _Body:
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise self._unreachable(f"HTTP {status}, and {error}") from error

    def _refuse(self, status: int) -> RegistryUnreachable:
        step = "set user and secrets in the [registry] part of the settings to an account that may read schemas"
        return self._unreachable(f"HTTP {status}", step if status in DENIED else "")

    def _unreachable(self, problem: str, next_step: str = "") -> RegistryUnreachable:
        return RegistryUnreachable(
            f"the schema registry {self.url} gave no schema: {problem}",
            next_step=next_step or f"see whether {self.url}/schemas/types answers from this machine; then start again",
        )


def _body(response: Response, deadline: float) -> bytes:
    """The body, in pieces as they arrive: otherwise one byte a second would never time out."""
    pieces: list[bytes] = []
    while piece := response.raw.read1(CHUNK_BYTES, decode_content=True):
        pieces.append(piece)
        if sum(map(len, pieces)) > ANSWER_BYTES_MAX:
            raise OSError(f"an answer of more than {ANSWER_BYTES_MAX} bytes")
        if time.monotonic() > deadline:
            raise _Passing(UNENDING)
    return b"".join(pieces)


def _read_place(kind: str, place: str) -> str:
    """The text of a file without its end of line, or of a variable of the environment."""
    if kind == "file":
        return Path(place).read_text().rstrip("\r\n")
    return os.environ.get(place, "")
