"""How the clients of an object store wait for it: ours, delta-rs and Arrow.

Each repeats a request by itself while the store refuses connections. An answer that breaks off is another matter: ours
and delta-rs repeat the request of a file then, but not that of a list, nor any whose answer was an error (measured).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import urlsplit

from lockstep.addresses import is_in_object_store

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

Answer = TypeVar("Answer")

WAIT_SECONDS: Final = 60
"""A store that is away is waited for as long; by default, clients give up after one to five seconds, where it refuses
connections (measured)."""
_DELTA_RETRIES: Final = {
    "max_retries": "100",
    "retry_timeout": f"{WAIT_SECONDS}s",
    "backoff_config.init_backoff": "100ms",
    "backoff_config.max_backoff": "2s",
    "backoff_config.base": "2",
}
_ARROW_ATTEMPTS: Final = 11  # after 25 ms, then twice as long each time: 50 seconds
_BROKEN_OFF: Final = "request or response body error"  # as ours and delta-rs name it
_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 0.1, 2.0


def repeat_broken_off(ask: Callable[[], Answer]) -> Answer:
    """The answer to a request, which is repeated while its answer breaks off.

    Raises:
        OSError: Any other error of the request, or this one after `WAIT_SECONDS`.
    """
    deadline, pause = time.monotonic() + WAIT_SECONDS, _PAUSE_SECONDS
    while True:
        try:
            return ask()
        except OSError as error:
            if _BROKEN_OFF not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(pause)
        pause = min(2 * pause, _PAUSE_SECONDS_MAX)


def find_region() -> str | None:
    """The region of the buckets, by the environment."""
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")


def find_delta_options(table: Path) -> dict[str, str] | None:
    """What delta-rs needs besides the environment to open a table; None for one in a folder."""
    return dict(_DELTA_RETRIES) if is_in_object_store(table) else None


def make_arrow_client() -> S3FileSystem:
    """Arrow's own client of an object store, configured by the variables of the environment that delta-rs reads."""
    from pyarrow.fs import AwsDefaultS3RetryStrategy, S3FileSystem  # heavy; only tables in an object store pay for it

    endpoint = urlsplit(os.environ.get("AWS_ENDPOINT_URL", ""))
    return S3FileSystem(
        endpoint_override=endpoint.netloc or None,
        scheme="http" if endpoint.scheme == "http" else "https",
        region=find_region(),
        retry_strategy=AwsDefaultS3RetryStrategy(max_attempts=_ARROW_ATTEMPTS),
    )
