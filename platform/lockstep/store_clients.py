"""How the clients of an object store wait for it: ours, delta-rs and Arrow.

Each repeats a request by itself while the store refuses connections. An answer that breaks off is another matter: ours
and delta-rs repeat the request of a file then, but not that of a list, nor any whose answer was an error (measured).
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import urlsplit

from lockstep.addresses import is_in_object_store
from lockstep.time_limit import describe_silence

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

LOG = logging.getLogger("lockstep")

Answer = TypeVar("Answer")
Item = TypeVar("Item")

WAIT_SECONDS: Final = 60
"""A store that is away is waited for as long; by default, clients give up after one to five seconds, if it refuses
connections (measured)."""
_DELTA_RETRIES: Final = {
    "max_retries": "100",
    "retry_timeout": f"{WAIT_SECONDS}s",
    "backoff_config.init_backoff": "100ms",
    "backoff_config.max_backoff": "2s",
    "backoff_config.base": "2",
}
_ARROW_ATTEMPTS: Final = 11  # after 25 ms, then twice as long each time: 50 seconds
_UNANSWERED: Final = re.compile("error sending request|request or response body error| retries, max_retries")
_BROKEN_OFF: Final = "request or response body error"  # as ours and delta-rs name it
_PAUSE_SECONDS = 0.1
_PAUSE_SECONDS_MAX = 2.0
REQUESTS_AT_ONCE: Final = 16


def ask_ahead(ask: Callable[[Item], Answer], items: Iterable[Item]) -> Iterator[Answer]:
    """The answers for some items, in their order; several are asked for at the same time.

    One by one, they would take as long as the items are many: 20 to 50 ms each. So many answers are in memory at most.
    """
    running = deque[Future[Answer]]()
    with ThreadPoolExecutor(REQUESTS_AT_ONCE, "requests") as threads:
        for item in items:
            if len(running) == REQUESTS_AT_ONCE:
                yield running.popleft().result()
            running.append(threads.submit(ask, item))
        while running:
            yield running.popleft().result()


def repeat_broken_off(ask: Callable[[], Answer]) -> Answer:
    """The answer to a request, which is repeated while its answer breaks off.

    Raises:
        OSError: Any other error of the request, or this error after `WAIT_SECONDS`.
    """
    deadline = time.monotonic() + WAIT_SECONDS
    pause = _PAUSE_SECONDS
    while True:
        try:
            return ask()
        except OSError as error:
            if _BROKEN_OFF not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(pause)
        pause = min(2 * pause, _PAUSE_SECONDS_MAX)


def repeat_unanswered(ask: Callable[[], Answer], wait_seconds: float) -> Answer:
    """The answer to a request, which is repeated, with one warning, while the store does not answer.

    The client has repeated it for a while before it fails here.

    Args:
        ask: Sends the request; an error of it has that of the client as its cause.
        wait_seconds: For so long.

    Raises:
        OSError: Any other error of the request, or this error after `wait_seconds`.
    """
    started = time.monotonic()
    pause = _PAUSE_SECONDS
    has_warned = False
    while True:
        try:
            return ask()
        except (FileExistsError, PermissionError):  # an answer, although the client has repeated the request before it
            raise
        except OSError as error:
            remaining = wait_seconds - (time.monotonic() - started)
            text = str(error.__cause__)
            if not _UNANSWERED.search(text):
                raise
            if remaining <= 0:
                error.strerror = f"{describe_silence('it', round(time.monotonic() - started))}: {error.strerror}"
                raise
            if not (has_warned or _BROKEN_OFF in text):
                LOG.warning("no answer yet, asked again for %.0f s: %s", remaining, str(error).splitlines()[0])
                has_warned = True
        time.sleep(pause)
        pause = min(2 * pause, _PAUSE_SECONDS_MAX)


def find_region() -> str | None:
    """The region of the buckets, by the environment."""
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")


def find_delta_options(table: Path) -> dict[str, str] | None:
    """What delta-rs needs besides the environment to open a table; None for one in a folder."""
    if not is_in_object_store(table):
        return None
    return dict(_DELTA_RETRIES)


def open_arrow_client() -> S3FileSystem:
    """Arrow's own client of an object store, configured by the variables of the environment that delta-rs reads.

    One a process: it keeps connections open. A new client needs a new connection, and a handshake of TLS.
    """
    return _make_arrow_client(os.getpid(), os.environ.get("AWS_ENDPOINT_URL", ""))


@lru_cache(maxsize=4)
def _make_arrow_client(_process: int, endpoint_url: str) -> S3FileSystem:
    from pyarrow.fs import AwsDefaultS3RetryStrategy, S3FileSystem  # heavy; only tables in an object store pay for it

    endpoint = urlsplit(endpoint_url)
    return S3FileSystem(
        endpoint_override=endpoint.netloc or None,
        scheme="http" if endpoint.scheme == "http" else "https",
        region=find_region(),
        retry_strategy=AwsDefaultS3RetryStrategy(max_attempts=_ARROW_ATTEMPTS),
    )
