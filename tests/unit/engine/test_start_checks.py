"""At its start, a run refuses more topics than its limit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lockstep import Limits
from lockstep.engine.driver.startup import check_topics_fit
from lockstep.errors import LockstepError
from tests.support.adding_stream import adding
from tests.support.cluster_views import topic, view

TWO_TOPICS = view(topic("t.a", "1"), topic("t.b", "2"), ends={}).topics


def test_as_many_topics_as_the_limit_are_fit() -> None:
    check_topics_fit(replace(adding(r"t\..+"), limits=Limits(topics=2)), TWO_TOPICS, ())


def test_a_pattern_that_matches_more_topics_than_the_limit_is_refused_by_name() -> None:
    with pytest.raises(LockstepError, match=r"matches 2 topics, the limit is 1") as refused:
        check_topics_fit(replace(adding(r"t\..+"), limits=Limits(topics=1)), TWO_TOPICS, ())
    assert "raise Limits(topics=...)" in refused.value.next_step
