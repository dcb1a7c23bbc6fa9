"""Why a connection fails: client log lines and broker certificate.

librdkafka reports a request that it cannot send as "timed out" or "transport failure". The cause
(a wrong password, an unknown certificate) is reported separately, in events and log lines.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterable, Mapping

import msgspec
from confluent_kafka import KafkaError as ClientError

from lockstep.time_limit import SLOW

LINES_MAX = 100
TEXT_MAX = 300
_AGE = re.compile(r" \(after \d+ms in state \w+\)$")
_ADDRESS = re.compile(r"(?:\w+://)?(?P<address>[^\s/]+:\d+)/(?P<node>bootstrap|-?\d+): (?P<rest>.*)", re.DOTALL)
_TOKEN = re.compile(
    r'Failed to (?:retrieve OIDC token from "[^"]*"|acquire SASL OAUTHBEARER token): (?P<rest>.*)', re.DOTALL
)
_PROTOCOL = "set kafka.options security.protocol to what this listener speaks, or correct the port"
_IDENTITY = "name your certificate and its key in kafka.options ssl.certificate.location and ssl.key.location"


class LogLine(msgspec.Struct, frozen=True):
    """One line.

    Attributes:
        text: The text, truncated and without control characters: a broker may have chosen it.
        code: librdkafka's code of an event; 0 for a log line.
    """

    text: str
    code: int = 0


class Cause(msgspec.Struct, frozen=True):
    """Why a request went unanswered.

    Attributes:
        problem: In part of a sentence.
        next_step: What to do.
        unverified: host:port whose certificate could not be verified; an inspection of it can show why.
        certain: Waiting does not help: an operator must change something.
    """

    problem: str
    next_step: str
    unverified: str | None = None
    certain: bool = False


class ConnectionLog:
    """Takes a client's events and log lines, as its `error_cb` and as its `logger`."""

    def __init__(self) -> None:
        self._lines: deque[LogLine] = deque(maxlen=LINES_MAX)

    def __call__(self, error: ClientError) -> None:
        """An event."""
        self._lines.append(LogLine(_plain(error.str()), error.code()))

    def log(self, level: int, form: str, *arguments: object) -> None:
        """A log line."""
        del level
        self._lines.append(LogLine(_plain(form % arguments)))

    def forget(self) -> None:
        """The cluster has answered: discard earlier lines."""
        self._lines.clear()

    def cause(self) -> Cause | None:
        """The most informative line's cause; None without lines."""
        return find_connection_cause(self._lines)


def find_connection_cause(lines: Iterable[LogLine]) -> Cause | None:
    """The cause of the most informative line; of equally informative ones the last."""
    best: Cause | None = None
    best_rank = len(_MEANINGS)
    for line in lines:
        rank, cause = _read(line)
        if cause is not None and rank <= best_rank:  # of equal ones the last
            best = cause
            best_rank = rank
    return best


def _read(line: LogLine) -> tuple[int, Cause | None]:
    """How informative a line is (0 is best), and its cause."""
    token = _TOKEN.search(line.text)
    if token is not None:
        return 0, _no_token(token["rest"])
    match = _ADDRESS.search(line.text)
    if match is None:
        return len(_MEANINGS), None
    where = _where(match["address"], match["node"])
    reason = match["rest"]
    for rank, (is_meant, make_cause) in enumerate(_MEANINGS):
        if is_meant(line.code, reason):
            return rank, make_cause(where, reason, match["address"])
    return len(_MEANINGS), Cause(f"{where}: {reason}", "check kafka.bootstrap_servers and that the brokers are up")


def _where(address: str, node: str) -> str:
    if node == "bootstrap":
        return address
    return f"{address}, an address that the cluster named (its advertised.listeners),"


def _no_token(rest: str) -> Cause:
    """The issuer sent no token: its own words follow."""
    problem = f"no token from the issuer: {rest}"
    if "invalid_client" in rest or "unauthorized_client" in rest:
        step = "check kafka.options sasl.oauthbearer.client.id, and the secret that kafka.secrets refers to"
        return Cause(problem, step, certain=True)
    if "certificate" in rest:
        step = "name the authority that signed its certificate in kafka.options https.ca.location"
        return Cause(problem, step, certain=True)
    return Cause(problem, "check that sasl.oauthbearer.token.endpoint.url answers; lockstep tries again by itself")


def _authentication(where: str, rest: str, _: str) -> Cause:
    if "invalid_token" in rest:
        step = "compare the audience, issuer and scope of the token with those that the listener requires"
        return Cause(f"{where} refused the token: {rest}", step, certain=True)
    return Cause(
        f"authentication failed at {where}: {rest.removeprefix('SASL authentication error: ')}",
        "check kafka.options sasl.username and sasl.mechanism, and what kafka.secrets sasl.password refers to",
        certain=True,
    )


def _unverified(where: str, _: str, address: str) -> Cause:
    return Cause(
        f"the certificate of {where} could not be verified",
        "name the authority that signed it in kafka.options ssl.ca.location, and the broker as its certificate does",
        unverified=address,
        certain=True,
    )


def _stranger(where: str, rest: str, _: str) -> Cause:
    alert = rest.rpartition("routines::")[2]
    return Cause(f"{where} did not accept this client's certificate: {alert}", _IDENTITY, certain=True)


def _no_tls(where: str, _: str, __: str) -> Cause:
    return Cause(f"{where} speaks no TLS, and this client is configured for it", _PROTOCOL, certain=True)


def _unresolved(where: str, _: str, __: str) -> Cause:
    return Cause(f"the host name of {where} is not known", "correct kafka.bootstrap_servers, or the name service")


def _not_there(where: str, rest: str, _: str) -> Cause:
    return Cause(f"{where}: {rest}", "check kafka.bootstrap_servers and that the brokers are up")


def _silent(where: str, _: str, __: str) -> Cause:
    """Librdkafka guesses "due to broker version < 0.10" when the first request of a connection times out."""
    return Cause(f"{where} did not answer a request in time", f"{SLOW}; see that the brokers are up: lockstep doctor")


def _closed(where: str, _: str, __: str) -> Cause:
    return Cause(
        f"{where} closes the connection without an answer: it is starting or stopping, or its listener speaks "
        "another security.protocol or asks for a certificate",
        _PROTOCOL,
    )


def _holds(pattern: str) -> Callable[[int, str], bool]:
    compiled = re.compile(pattern)
    return lambda _, text: compiled.search(text) is not None


_MEANINGS: tuple[tuple[Callable[[int, str], bool], Callable[[str, str, str], Cause]], ...] = (
    (lambda code, _: code == ClientError._AUTHENTICATION, _authentication),  # noqa: SLF001  # the client's name
    (_holds("certificate verify failed"), _unverified),
    (_holds("alert .*(certificate|unknown ca|access denied)"), _stranger),
    (_holds("PLAINTEXT broker listener|wrong version number|packet length too long"), _no_tls),
    (_holds("Failed to resolve"), _unresolved),
    (_holds("Connect to .* failed"), _not_there),
    (_holds("[Tt]imed out"), _silent),
    (_holds("Disconnected|closed by peer"), _closed),
)
"""From the most to the least informative: a restarting broker logs some of the last in addition to its cause."""


def _plain(text: str) -> str:
    printable = "".join(character if character.isprintable() else " " for character in text)
    return _AGE.sub("", printable)[:TEXT_MAX]


LOOK_SECONDS_MAX = 5.0


def explain_unverified_certificate(address: str, options: Mapping[str, str]) -> str:
    """Why the certificate at host:port is not trusted; empty if unknown. Sends only the TLS greeting.

    Args:
        address: host:port.
        options: The Kafka options, for the trusted authority.
    """
    host, _, port = address.rpartition(":")
    name = host.strip("[]")
    try:
        trust = ssl.create_default_context(cafile=options.get("ssl.ca.location"), cadata=options.get("ssl.ca.pem"))
        with socket.create_connection((name, int(port)), LOOK_SECONDS_MAX) as plain:
            trust.wrap_socket(plain, server_hostname=name).close()
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    except (OSError, ValueError):
        return ""
    return ""
