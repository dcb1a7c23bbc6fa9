"""The text of a finding: values of a producer stay within one line."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from lockstep.integrity.resume_options import StreamHalted
from lockstep.model.finding import HIDDEN, Finding

NAMES = st.sampled_from(["maria@example.org", "a", "münchen/7", "a'b\"c\\d", "日本語", "*", "$(x)", "1.2.3.4"])
TEXTS = st.sampled_from(["{}", "KeyError: {!r}", "found {} and {}", "<{}>", "", "nothing", "[{!a}]"])


def test_a_value_makes_no_second_line_and_moves_no_cursor() -> None:
    detail = "Invalid value 'z\nERROR forged \x1b[31m\u202e' - at `$.type`"
    finding = Finding("undecodable", "a", "id", 0, 5, 6, expected="1\n2", found="\r3", detail=detail)
    said = r"expected 1\n2, found \r3 (Invalid value 'z\nERROR forged \x1b[31m\u202e' - at `$.type`)"
    assert str(finding) == f"undecodable at a/0 offset 5: {said}"
    assert finding.detail == detail


@given(name=NAMES, template=TEXTS)
def test_a_violation_for_events_and_alarms_does_not_name_its_session(name: str, template: str) -> None:
    text = template.format(name, name)
    finding = Finding("gap", "books", "id", 0, 7, 8, name, text, text, text, text)
    hidden = finding.without_session()
    texts = (hidden.expected, hidden.found, hidden.detail, hidden.traceback)
    for spelling in (name, repr(name)[1:-1], ascii(name)[1:-1]):
        left = re.sub(re.escape(HIDDEN), "", " ".join(map(str, texts)))
        assert not re.search(rf"(?<!\w){re.escape(spelling)}(?!\w)", left)
    error = StreamHalted("books", (finding,)).without_sessions()
    assert hidden.session is None
    assert "skip-session" not in str(error)
    assert len(name) == 1 or name not in f"{error} {error.next_step} {error.findings}"
    assert "books/0 offset 7" in str(error)
