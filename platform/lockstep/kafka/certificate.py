"""Looks at a broker's certificate to say why the Kafka client did not trust it; the client does not tell."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping

LOOK_SECONDS_MAX = 5.0


def why_unverified(address: str, options: Mapping[str, str]) -> str:
    """Why the certificate at host:port is not trusted; empty when it cannot be told. Sends nothing but the greeting.

    Args:
        address: host:port.
        options: The Kafka options, for the authority that is trusted.
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
