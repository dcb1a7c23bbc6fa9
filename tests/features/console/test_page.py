"""The page in a headless browser: both views, narrow and wide, light and dark, by keyboard, with hostile texts."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
import pytest

from lockstep.control.live_report import LiveReport, LiveTopic
from lockstep.features.console.server import ConsoleServer
from lockstep.features.console.views import WriterSnapshot
from lockstep.features.console.watcher import ConsoleWatcher
from lockstep.integrity.resume_options import IntegrityLost
from lockstep.operations.alarms import Alarm, AlarmSeverity
from tests.support.browser import find_browser, open_browser
from tests.support.feed import session, update

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.browser import Page
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_browser() is None, reason="not run: Chromium is missing (Debian: apt-get install chromium)"
    ),
]
HOSTILE = "<img src=x onerror=alert(1)>\"'&</code>\u202eevil"
PHONE = 390


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    """A tab of a browser."""
    program = find_browser()
    assert program is not None
    with open_browser(program, tmp_path / "profile") as opened:
        opened.resize(1200, 900)
        yield opened


@contextmanager
def serving(watcher: ConsoleWatcher) -> Iterator[str]:
    """Serve the page and return its address."""
    server = ConsoleServer(watcher, "127.0.0.1", 0, ())
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.stop()
        thread.join(30)


class Staged(ConsoleWatcher):
    """A watcher whose facts are set by a test."""

    def stage(self, **facts: object) -> None:
        """Replace facts of the only stream."""
        (name,) = self._known
        self._known[name] = msgspec.structs.replace(self._known[name], **facts)

    def poll_writers(self) -> None:
        """Read nothing."""

    def poll_tables(self) -> None:
        """Read nothing."""


def count_scrolled(page: Page) -> int:
    """Return the pixels by which the page is wider than the window."""
    return int(page.evaluate("document.documentElement.scrollWidth - innerWidth"))


def test_the_page_answers_the_questions_about_a_halted_stream(feed: Feed, runs: LocalRuns, page: Page) -> None:
    topic = feed.create("values")
    feed.send(topic, [*session(2), update(9, a=1), update(10, a=1)])
    with pytest.raises(IntegrityLost):
        runs.run()
    with serving(ConsoleWatcher([runs.stream], runs.settings)) as address:
        page.open(address)
        page.wait_for("document.body.innerText.includes('halted')")
        page.evaluate("document.querySelector('.card a').click()")
        page.wait_for("location.pathname === '/streams/adding' && document.querySelector('.timeline') !== null")
        text = page.text()
        for needed in (
            "Which topics are read?",
            "1 topic",
            "2 messages",
            "Why the last start?",
            "lockstep resume adding",
        ):
            assert needed in text, needed
        page.evaluate("history.back()")
        page.wait_for("location.pathname === '/' && document.querySelector('.card') !== null")
    assert page.errors == []


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_phone_and_shows_hostile_text_as_text(runs: LocalRuns, page: Page, *, dark: bool) -> None:
    alarm = Alarm(kind="halted", severity=AlarmSeverity.ERROR, problem=HOSTILE * 5, next_step=f"lockstep x '{HOSTILE}'")
    topics = tuple(LiveTopic(f"{HOSTILE}{number}" + "x" * 200, (0, 1), (number, 0), (0, 0)) for number in range(50))
    report = LiveReport(epoch=1, run_id=HOSTILE, cause=HOSTILE, claimed_at=time.time(), topics=topics)
    watcher = Staged([runs.stream], runs.settings)
    watcher.stage(alarms=(alarm,), live=WriterSnapshot(True, report))  # noqa: FBT003
    page.resize(PHONE, 844, dark=dark)
    with serving(watcher) as address:
        for path in ("/", "/streams/adding"):
            page.open(address + path)
            page.wait_for("document.querySelector('.alarm') !== null")
            assert count_scrolled(page) <= 0
            assert HOSTILE[:20] in page.text()
            assert page.evaluate("document.querySelector('main img')") is None
    assert page.errors == []


def test_a_thousand_topics_fit_and_are_reached_by_keys(runs: LocalRuns, page: Page) -> None:
    topics = tuple(LiveTopic(f"t{number:04}", tuple(range(8)), (number,) * 8, (1, 0) * 4) for number in range(1_000))
    report = LiveReport(epoch=1, run_id="r", cause="c", claimed_at=time.time(), topics=topics)
    watcher = Staged([runs.stream], runs.settings)
    watcher.stage(live=WriterSnapshot(True, report))  # noqa: FBT003
    with serving(watcher) as address:
        for width in (1200, PHONE):
            page.resize(width, 900)
            page.open(f"{address}/streams/adding")
            page.wait_for("document.querySelector('canvas')?.height > 20")
            assert count_scrolled(page) <= 0
            assert int(page.evaluate("document.querySelector('canvas').clientHeight")) < 900
        page.evaluate("document.querySelector('canvas').focus()")
        page.press("ArrowRight")
        page.wait_for("document.body.innerText.includes('t0000')")
        page.press("ArrowRight")
        page.wait_for("document.body.innerText.includes('t0001')")
        page.evaluate("[...document.querySelectorAll('button')].find((one) => one.innerText.startsWith('age')).click()")
        page.wait_for("document.querySelector('canvas').ariaLabel.includes('without a message')")
    assert page.errors == []


def test_news_keep_the_focus_and_a_lost_server_is_said(runs: LocalRuns, page: Page) -> None:
    alarm = Alarm(kind="quarantine", severity=AlarmSeverity.WARNING, problem="p", next_step="lockstep status adding")
    watcher = Staged([runs.stream], runs.settings)
    watcher.stage(alarms=(alarm,))
    with serving(watcher) as address:
        page.open(f"{address}/streams/adding")
        page.wait_for("document.querySelector('.alarm button') !== null")
        page.evaluate("document.querySelector('.alarm button').focus()")
        topics = (LiveTopic("a", (0,), (77,), (0,)),)
        report = LiveReport(epoch=2, run_id="r", cause="c", claimed_at=time.time(), topics=topics)
        watcher.stage(live=WriterSnapshot(True, report))  # noqa: FBT003
        page.wait_for("document.body.innerText.includes('77 messages')")
        assert page.evaluate("document.activeElement.textContent") == "copy"
        assert page.errors == []
    page.wait_for("document.getElementById('link').innerText.includes('no connection')")


def test_an_unknown_stream_is_named(runs: LocalRuns, page: Page) -> None:
    with serving(ConsoleWatcher([runs.stream], runs.settings)) as address:
        page.open(f"{address}/streams/other")
        page.wait_for("document.body.innerText.includes('No stream is declared with the name other.')")
