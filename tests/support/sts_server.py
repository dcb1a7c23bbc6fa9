"""The token service of a cloud (STS): it issues tokens for requests signed with the machine's credentials."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from botocore.auth import SigV4Auth  # type: ignore[import-untyped]  # it has no types
from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]  # it has no types
from botocore.credentials import Credentials  # type: ignore[import-untyped]  # it has no types

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.token_server import TokenServer

KEY_ID = "AKIDOFTESTS"
KEY_PHRASE = "phrase-of-tests"
REGION = "eu-central-1"
ANSWER = """<GetWebIdentityTokenResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><GetWebIdentityTokenResult>
<WebIdentityToken>{token}</WebIdentityToken><Expiration>{expires}</Expiration></GetWebIdentityTokenResult>
</GetWebIdentityTokenResponse>"""


@dataclass
class StsServer:
    """The service.

    Attributes:
        address: Its address.
        requests: The parameters of the requests with a valid signature.
        refused: Number of requests with a wrong signature.
    """

    address: str
    requests: list[dict[str, list[str]]] = field(default_factory=list)
    refused: int = 0


@contextlib.contextmanager
def run_sts_server(tokens: TokenServer) -> Iterator[StsServer]:
    """Serve tokens of an issuer until the block ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    service = StsServer(f"http://127.0.0.1:{server.server_address[1]}")
    server.RequestHandlerClass = _make_handler(service, tokens)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _make_handler(service: StsServer, tokens: TokenServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """A request for a token."""

        def do_POST(self) -> None:
            """Check the signature and answer."""
            body = self.rfile.read(int(self.headers["Content-Length"]))
            is_signed = self.headers["Authorization"] == sign_again(service.address, dict(self.headers), body)
            service.refused += not is_signed
            if is_signed:
                service.requests.append(parse_qs(body.decode()))
            expires = datetime.now(UTC) + timedelta(seconds=tokens.life_seconds)
            answer = ANSWER.format(token=tokens.issue(), expires=f"{expires:%Y-%m-%dT%H:%M:%SZ}").encode()
            self.send_response(200 if is_signed else 403)
            self.send_header("Content-Type", "text/xml")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer if is_signed else b" " * len(answer))

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base's names
            """Log nothing."""

    return Handler


def sign_again(address: str, headers: dict[str, str], body: bytes) -> str:
    """Return the Authorization header of a request signed with the credentials of the tests."""
    given = headers["Authorization"]
    names = given.partition("SignedHeaders=")[2].partition(",")[0].split(";")
    lower = {name.lower(): value for name, value in headers.items()}
    request = AWSRequest("POST", f"{address}/", data=body, headers={name: lower[name] for name in names})
    request.context["timestamp"] = lower["x-amz-date"]
    signer = SigV4Auth(Credentials(KEY_ID, KEY_PHRASE), "sts", REGION)
    text = signer.string_to_sign(request, signer.canonical_request(request))
    parts = (f"Credential={signer.scope(request)}", f"SignedHeaders={';'.join(names)}")
    return f"AWS4-HMAC-SHA256 {', '.join(parts)}, Signature={signer.signature(text, request)}"
