"""The user named by a proxy is a tag of the run that the request launches or terminates, and of no other run."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

from dagster import DagsterInstance, DagsterRunStatus, job, op
from hypothesis import given
from hypothesis import strategies as some

from lockstep.orchestration import request_user
from lockstep.orchestration.names import TERMINATED_BY_TAG, USER_TAG
from lockstep.orchestration.request_user import USER_LENGTH_MAX, RequestUser, find_user, read_user
from lockstep.orchestration.supervisor_policy import SupervisorCursor, SupervisorObservation, decide_supervision
from lockstep.table.head import Desired, Head

if TYPE_CHECKING:
    import pytest
    from starlette.types import Receive, Scope, Send

HEADER = "X-Lockstep-User"
NAMES = some.text(min_size=1, max_size=2 * USER_LENGTH_MAX)


def see_users(*requests: list[tuple[bytes, bytes]]) -> list[str]:
    """Return the user of each of some requests, as the application sees it."""
    seen = list[str]()

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive, send
        await asyncio.sleep(0)
        seen.append(request_user._USER.get())  # noqa: SLF001  # as the wrapped methods of Dagster do

    async def ask() -> None:
        for headers in requests:
            await RequestUser(application, HEADER)({"type": "http", "headers": headers}, None, None)  # type: ignore[arg-type]  # not used

    asyncio.run(ask())
    return seen


@given(users=some.lists(NAMES, min_size=1, max_size=4), other=NAMES)
def test_a_request_has_the_user_of_its_own_header_alone(users: list[str], other: str) -> None:
    requests = [
        [(HEADER.lower().encode(), user.encode("utf-8", "replace")), (b"cookie", other.encode("utf-8", "replace"))]
        for user in users
    ]
    expected = [read_user(user.encode("utf-8", "replace")) for user in users]
    assert see_users(*requests, []) == [*expected, ""]


@given(user=NAMES)
def test_a_name_that_no_text_should_show_is_none(user: str) -> None:
    name = read_user(user.encode("utf-8", "replace"))
    assert name == "" or (name.isprintable() and len(name) <= USER_LENGTH_MAX)


def test_a_header_that_is_there_twice_names_nobody() -> None:
    twice = [(HEADER.lower().encode(), b"ann"), (HEADER.lower().encode(), b"bob")]
    assert see_users(twice) == [""]


@op
def nothing() -> None:
    """Do nothing."""


@job
def nothing_job() -> None:
    """Run nothing."""
    nothing()


def test_a_re_execution_has_not_the_user_of_its_original(tmp_path_factory: pytest.TempPathFactory) -> None:
    with DagsterInstance.ephemeral(tempdir=str(tmp_path_factory.mktemp("dagster"))) as instance:
        first = instance.create_run_for_job(nothing_job, run_id=str(uuid.uuid4()))
        instance.add_run_tags(first.run_id, {USER_TAG: f"{first.run_id[:8]} ann lee"})
        tagged = instance.get_run_by_id(first.run_id)
        assert tagged is not None
        again = instance.create_run_for_job(nothing_job, run_id=str(uuid.uuid4()), tags=dict(tagged.tags))
        assert (find_user(tagged), find_user(again)) == ("ann lee", "")
        assert find_user(tagged, TERMINATED_BY_TAG) == ""
        assert tagged.status is DagsterRunStatus.NOT_STARTED


def test_a_stop_says_who_terminated_the_run() -> None:
    head = Head(stream="books", cluster_id="c", epoch=3, desired=Desired.RUNNING)
    seen = SupervisorObservation(head=head, terminated="0123456789", terminated_by="ann")
    cursor = SupervisorCursor()
    for now in range(4):
        decision = decide_supervision(seen, cursor, 1_000.0 + 10 * now)
        cursor = decision.cursor
    assert decision.stop is not None
    assert decision.stop.reason == "terminated in Dagster by ann (run 01234567)"
