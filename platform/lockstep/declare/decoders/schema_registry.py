"""Confluent wire format, registry protocol and HTTP client."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import quote

import msgspec
from typing_extensions import override

from lockstep.declare.decoders.base import (
    FRAME_BYTES,
    Decode,
    DecodeCause,
    Decoder,
    RegisteredSchema,
    Registry,
    SchemaReference,
    Undecodable,
)
from lockstep.errors import DeclarationError, LockstepError, RegistryUnreachable, SettingsError
from lockstep.time_limit import run_within

if TYPE_CHECKING:
    from requests import Response


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
    """A decoder of framed messages.

    Attributes:
        registry: The schema registry; by default the installation's (`[registry]` of the settings).
    """

    registry: Registry | None = None

    def __post_init__(self) -> None:
        """Refuse an address: it would be found by the first message."""
        given = cast("object", self.registry)  # users need no checker
        if given is not None and not isinstance(given, Registry):
            remedy = "leave it out and set url in the [registry] part of the settings, or give a Registry"
            raise DeclarationError(f"{type(self).__name__}.registry", given, "is no Registry", remedy)

    def connected(self, registry: Registry | None) -> FramedDecoder:
        """See `Decoder.connected`; the decoder's own registry takes precedence over the installation's."""
        return replace(self, registry=self.registry or registry)


class Framed:
    """Decodes framed values; each id is requested once per worker."""

    def __init__(
        self, registry: Registry | None, reader_of: Callable[[RegisteredSchema], Decode], decoder: str
    ) -> None:
        """See the class.

        Args:
            registry: The registry; without one only the declaration can be checked.
            reader_of: Makes, from a schema, the function that reads a whole frame with it.
                Raises Undecodable when no message of this schema can be read.
            decoder: Name of the decoder, for people.
        """
        self._registry, self._reader_of, self._decoder = registry, reader_of, decoder
        self._readers: dict[bytes, Decode] = {}
        self._unknown: dict[int, float] = {}
        self._second_looks = SECOND_LOOKS_MAX

    def decode(self, value: bytes) -> object:
        """The message in a frame.

        Raises:
            Undecodable: The value is no frame, or contains no message of the stream.
            RegistryUnreachable: The registry could not return the schema of the id.
        """
        # The raw header is the key: one look-up checks the magic byte and finds the schema.
        read = self._readers.get(value[:FRAME_BYTES])
        return read(value) if read is not None else self._met(value)(value)

    def _met(self, value: bytes) -> Decode:
        """The reader of an id that is new to this worker."""
        schema_id = _schema_id(value)
        registered = self._known(schema_id)
        try:
            reader = self._reader_of(registered)
        except Undecodable as unfit:
            reader = _refusing(unfit.cause, f"schema {schema_id}: {unfit}")
        self._readers[value[:FRAME_BYTES]] = reader
        return reader

    def _known(self, schema_id: int) -> RegisteredSchema:
        now = time.monotonic()
        if now - self._unknown.get(schema_id, -UNKNOWN_SECONDS) >= UNKNOWN_SECONDS:
            registered = self._asked(schema_id)
            if registered is not None:
                return registered
            if len(self._unknown) >= UNKNOWN_IDS_MAX:
                self._unknown.clear()
            self._unknown[schema_id] = time.monotonic()
        raise Undecodable(DecodeCause.UNKNOWN_SCHEMA_ID, f"the schema registry knows no schema id {schema_id}")

    def _asked(self, schema_id: int) -> RegisteredSchema | None:
        if self._registry is None:
            raise RegistryUnreachable("no schema registry is connected", next_step=_name_one(self._decoder))
        found = _answer_of(self._registry, schema_id)
        if found is None and self._second_looks > 0:
            self._second_looks -= 1
            time.sleep(SECOND_LOOK_SECONDS)
            found = _answer_of(self._registry, schema_id)
        return found


def _answer_of(registry: Registry, schema_id: int) -> RegisteredSchema | None:
    """The registry's answer. Whatever else it does is no verdict on a message, not even a ValueError."""
    name = f"{type(registry).__qualname__}.schema({schema_id})"
    remedy = f"correct {type(registry).__qualname__}: it returns a RegisteredSchema, or None for an unknown id"
    try:
        found = cast("object", registry.schema(schema_id))  # users need no checker
    except LockstepError:
        raise
    except Exception as error:  # the user's class ends here
        raise RegistryUnreachable(f"{name} raised {type(error).__name__}: {error}", next_step=remedy) from error
    if found is not None and not isinstance(found, RegisteredSchema):
        raise RegistryUnreachable(f"{name} returned a {type(found).__name__}", next_step=remedy)
    return found


def check_registry(decoder: Decoder) -> None:
    """Refuse a connected decoder without a registry.

    Raises:
        SettingsError: It needs a schema registry, and neither it nor the installation names one.
    """
    if isinstance(decoder, FramedDecoder) and decoder.registry is None:
        name = type(decoder).__name__
        raise SettingsError(f"{name}() needs a schema registry and none is set", next_step=_name_one(name))


def _name_one(decoder: str) -> str:
    return (
        "set url in the [registry] part of the settings, or LOCKSTEP_REGISTRY__URL; "
        f"or give the decoder its own: {decoder}(registry=...)"
    )


def _schema_id(value: bytes) -> int:
    if value[:1] != b"\x00":
        found = f"0x{value[0]:02x}" if value else "nothing"
        raise Undecodable(
            DecodeCause.UNKNOWN_MAGIC_BYTE if value else DecodeCause.TRUNCATED,
            f"a frame begins with 0x00, this with {found}",
        )
    if len(value) < FRAME_BYTES:
        raise Undecodable(DecodeCause.TRUNCATED, f"a frame begins with {FRAME_BYTES} bytes, this has {len(value)}")
    return int.from_bytes(value[1:FRAME_BYTES], "big")


def _refusing(cause: DecodeCause, problem: str) -> Decode:
    def refuse(value: bytes) -> object:
        del value
        raise Undecodable(cause, problem)

    return refuse


SCHEMA_NOT_FOUND: Final = 40403
"""The only answer about an id; a bare 404 may come from any proxy or wrong path."""
ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024
"""Far above the size of any schema; below what would hurt a worker."""
CHUNK_BYTES: Final = 65_536
UNENDING: Final = "an answer that does not end"
TRIES_SHARE_MAX: Final = 1.5
"""Above the time that all tries may take, of the timeout: the last one may connect, wait and read for a third each."""
REFERENCES_MAX: Final = 200
"""Schemas that one schema may build on, also indirectly."""
PAUSE_SECONDS_FIRST, PAUSE_SECONDS_MAX = 0.2, 2.0
PASSING: Final = frozenset({408, 429, 500, 502, 503, 504})
"""Responses that may be transient."""


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


class _Passing(Exception):  # a transient state of the registry, which is retried
    """The registry did not answer this time."""


@dataclass(frozen=True)
class HttpRegistry(Registry):
    """A schema registry at an address.

    Attributes:
        url: Address, for example http://registry:8081.
        user: User, if the registry requires one.
        password_from: Source of the password: "file:" and an absolute path, or "env:" and a variable.
            The password itself is read for each request, and not cached.
        ca_file: Certificates to trust instead of the system's.
        timeout_seconds: Timeout of one request, retries included.
    """

    url: str
    user: str = ""
    password_from: str = ""
    ca_file: Path | None = None
    timeout_seconds: float = 10.0

    @override
    def schema(self, schema_id: int) -> RegisteredSchema | None:
        answer = self._asked(f"/schemas/ids/{schema_id}")
        return None if answer is None else self._whole(answer)

    def _whole(self, answer: _Answer) -> RegisteredSchema:
        """The schema with all its references."""
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
        """The answer to one request, retried while the registry fails; None for an unknown id."""
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
            return run_within(TRIES_SHARE_MAX * self.timeout_seconds, lambda: repeated(self._once, path, deadline))
        except TimeoutError as error:
            raise self._unreachable(f"{UNENDING}, for {self.timeout_seconds:g} s") from error
        except _Passing as error:
            raise self._unreachable(f"{error}, for {self.timeout_seconds:g} s") from error

    def _once(self, path: str, deadline: float) -> _Answer | None:
        import requests
        from requests.auth import HTTPBasicAuth
        from requests.exceptions import ConnectionError as NoConnection
        from urllib3.exceptions import HTTPError as BrokenOff

        left = max(self.timeout_seconds / 3, deadline - time.monotonic())
        try:
            with requests.get(
                self.url.rstrip("/") + path,
                headers={"Accept": "application/vnd.schemaregistry.v1+json, application/json"},
                # Encoded here: of a text requests takes Latin-1 alone.
                auth=HTTPBasicAuth(self.user.encode(), self._password().encode()) if self.user else None,
                timeout=min(left, self.timeout_seconds / 2),
                verify=str(self.ca_file) if self.ca_file else True,
                allow_redirects=False,  # only the configured registry receives the password
                stream=True,
            ) as response:
                return self._judged(response.status_code, _body(response, deadline))
        except requests.exceptions.SSLError as error:
            raise self._unreachable(f"TLS: {error}") from error
        except (NoConnection, requests.exceptions.Timeout, BrokenOff) as error:
            raise _Passing(f"no answer ({type(error).__name__})") from error
        except (requests.exceptions.RequestException, OSError) as error:
            raise self._unreachable(str(error)) from error

    def _password(self) -> str:
        kind, _, place = self.password_from.partition(":")
        try:
            password = Path(place).read_text().rstrip("\r\n") if kind == "file" else os.environ.get(place, "")
        except (OSError, UnicodeDecodeError) as error:
            raise self._unreachable(f"its password cannot be read: {type(error).__name__}", _PUT_IT_THERE) from None
        if not password:
            raise self._unreachable(f"there is no password in {self.password_from}", _PUT_IT_THERE)
        return password

    def _judged(self, status: int, body: bytes) -> _Answer | None:
        if status in PASSING:
            raise _Passing(f"HTTP {status}")
        if status in {401, 403}:
            raise self._unreachable(
                f"HTTP {status}",
                "set user and secrets in the [registry] part of the settings to an account that may read schemas",
            )
        try:
            if status == 200:  # noqa: PLR2004  # HTTP's own number
                return msgspec.json.decode(body, type=_Answer)
            if msgspec.json.decode(body, type=_Refusal).error_code == SCHEMA_NOT_FOUND:
                return None
        except msgspec.MsgspecError as error:
            raise self._unreachable(f"HTTP {status}, and {error}") from error
        raise self._unreachable(f"HTTP {status}")

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
