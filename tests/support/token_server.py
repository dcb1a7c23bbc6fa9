"""An issuer of OpenID Connect tokens by client credentials, over TLS. The broker reads its public keys from a file."""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CLIENT = "stream-client"
CLIENT_PHRASE = "client-passphrase+/="
AUDIENCE = "kafka"
RESOURCE = "api://kafka"
"""The application for which a machine in a cloud may get tokens."""
KEYS = "keys.json"
PATH = "/oauth2/v2.0/token"
KEY_ID = "of-the-tests"


@dataclass
class TokenServer:
    """The issuer.

    Attributes:
        port: Its port on loopback.
        life_seconds: Life of a token.
        issued: Number of tokens.
        refusal: Status of all further answers; 0 issues tokens.
        redirect: Address to which all further requests are redirected; empty for none.
        scopes: The scopes of the requests.
    """

    key: rsa.RSAPrivateKey
    port: int = 0
    life_seconds: int = 300
    issued: int = 0
    refusal: int = 0
    redirect: str = ""
    audience: str = AUDIENCE
    scopes: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Address of the tokens."""
        return f"https://127.0.0.1:{self.port}{PATH}"

    def issue(self) -> str:
        """Issue a signed token."""
        self.issued += 1
        now = int(time.time())
        claims = {"sub": CLIENT, "aud": self.audience, "iss": self.url, "scope": "streams"}
        times = {"iat": now, "exp": now + self.life_seconds, "jti": str(self.issued)}
        head = {"alg": "RS256", "kid": KEY_ID, "typ": "JWT"}
        signed = f"{_encode(json.dumps(head).encode())}.{_encode(json.dumps(claims | times).encode())}"
        signature = self.key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{_encode(signature)}"


def _encode(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def _encode_number(value: int) -> str:
    return _encode(value.to_bytes((value.bit_length() + 7) // 8, "big"))


@contextlib.contextmanager
def run_token_server(folder: Path) -> Iterator[TokenServer]:
    """Write the public key for the broker, and answer until the block ends.

    Args:
        folder: Contains tokens.pem, the certificate and key of the server; the file `KEYS` is written to it.
    """
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    numbers = key.public_key().public_numbers()
    public = {"kty": "RSA", "kid": KEY_ID, "use": "sig", "alg": "RS256"}
    public |= {"n": _encode_number(numbers.n), "e": _encode_number(numbers.e)}
    (folder / KEYS).write_text(json.dumps({"keys": [public]}))
    tokens = TokenServer(key)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _make_handler(tokens))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tokens.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    tokens.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield tokens
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Answering(BaseHTTPRequestHandler):
    """A handler that answers in JSON."""

    def _answer(self, status: int, content: dict[str, object], **headers: str) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base's names
        """Log nothing."""


def answer_machine(tokens: TokenServer, path: str, header: str | None) -> tuple[int, dict[str, object]]:
    """Return the answer of a cloud machine's metadata service: status and content."""
    if header != "true" or f"resource={RESOURCE}" not in path:
        return 400, {"error": "invalid_request", "error_description": "no header, or another resource"}
    return 200, {"access_token": tokens.issue(), "expires_in": str(tokens.life_seconds)}


def _make_handler(tokens: TokenServer) -> type[BaseHTTPRequestHandler]:
    expected = "Basic " + base64.b64encode(f"{CLIENT}:{CLIENT_PHRASE}".encode()).decode()

    class Handler(_Answering):
        """A request for a token."""

        def do_POST(self) -> None:
            """Answer as an issuer."""
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            tokens.scopes += form.get("scope", [])
            if tokens.redirect:
                self._answer(307, {}, Location=tokens.redirect)
            elif tokens.refusal:
                self._answer(tokens.refusal, {"error": "server_error"})
            elif self.headers["Authorization"] != expected or form["grant_type"] != ["client_credentials"]:
                self._answer(401, {"error": "invalid_client", "error_description": "unknown client or wrong secret"})
            else:
                life = {"token_type": "Bearer", "expires_in": tokens.life_seconds}
                self._answer(200, {"access_token": tokens.issue(), **life})

        def do_GET(self) -> None:
            """Answer as the metadata service of a cloud machine."""
            self._answer(*answer_machine(tokens, self.path, self.headers["Metadata"]))

    return Handler
