"""Who asked for a run or its end: the user whom a proxy in front of the web server has authenticated.

Dagster's web server has no users. The proxy names them in a header (`web.user_header` of the settings), which it must
set on every request, or a client could name any. The name becomes a tag of the run, and part of the history.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from dagster import DagsterInstance

from lockstep.orchestration.names import TERMINATED_BY_TAG, USER_TAG

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dagster import DagsterRun
    from starlette.types import ASGIApp, Receive, Scope, Send

USER_LENGTH_MAX = 100
_USER: ContextVar[str] = ContextVar("user", default="")


class RequestUser:
    """ASGI middleware that notes the user of each request."""

    def __init__(self, application: ASGIApp, header: str) -> None:
        """Note users for an application.

        Args:
            application: Answers the requests.
            header: Name of the header.
        """
        self._application = application
        self._header = header.lower().encode("ascii")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request as its user."""
        named = [value for name, value in scope.get("headers", ()) if name.lower() == self._header]
        user = ""
        if len(named) == 1:  # of several, one may be the client's own
            user = read_user(named[0])
        token = _USER.set(user)
        try:
            await self._application(scope, receive, send)
        finally:
            _USER.reset(token)


def read_user(value: bytes) -> str:
    """The name in a header; empty for one that no text should show."""
    name = value.decode("utf-8", "replace").strip()
    return name if name.isprintable() and len(name) <= USER_LENGTH_MAX else ""


def add_user_tags() -> None:
    """Tag each run that a user of this process's web server launches or terminates from now on."""
    _wrap("submit_run", USER_TAG, lambda run_id: run_id)
    _wrap("report_run_canceling", TERMINATED_BY_TAG, lambda run: run.run_id)
    _wrap("report_run_canceled", TERMINATED_BY_TAG, lambda run: run.run_id)


def _wrap(method: str, tag: str, find_id: Callable[[Any], str]) -> None:
    call = getattr(DagsterInstance, method)

    def call_tagged(instance: DagsterInstance, run: Any, *arguments: Any, **options: Any) -> Any:
        if user := _USER.get():
            run_id = find_id(run)
            instance.add_run_tags(run_id, {tag: f"{run_id[:8]} {user}"})
        return call(instance, run, *arguments, **options)

    setattr(DagsterInstance, method, call_tagged)


def find_user(run: DagsterRun, tag: str = USER_TAG) -> str:
    """The user who launched a run, or terminated it; empty if unknown."""
    tags: Mapping[str, str] = run.tags
    # With the id of its run: a re-execution copies the tags of its original.
    of_run, _, user = tags.get(tag, "").partition(" ")
    return user if of_run == run.run_id[:8] else ""
