"""A head names the features that its table needs; a table that needs an absent feature is refused by its name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import TableError
from lockstep.feature import list_installed
from lockstep.table import head as heads
from lockstep.table.head import Head

if TYPE_CHECKING:
    from collections.abc import Iterable

OWNERS = dict[str, str]()
for each in list_installed():
    OWNERS.update(dict.fromkeys(each.head_fields, each.name))
HEAD = Head(stream="books", cluster_id="cluster")
TYPES = {field.name: field.type for field in msgspec.structs.fields(Head)}


def make_value(kind: Any) -> Any:
    """Return a value of a field's type that is neither None nor empty: these count as never set."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind(**{each.name: make_value(each.type) for each in msgspec.structs.fields(kind) if each.required})
    parts = [each for each in getattr(kind, "__args__", ()) if each not in {type(None), ...}]
    if getattr(kind, "__origin__", None) is tuple:
        return (make_value(parts[0]),)
    return make_value(parts[0]) if parts else kind()


def use_features(fields: Iterable[str]) -> Head:
    """Return a head with some fields set."""
    return msgspec.structs.replace(HEAD, **{field: make_value(TYPES[field]) for field in fields})


@given(st.sets(st.sampled_from(sorted(OWNERS))))
def test_a_head_names_the_features_whose_fields_are_set(fields: set[str]) -> None:
    used = use_features(fields)
    written = json.loads(used.encode())
    assert set(written.get("features", {})) == {OWNERS[field] for field in fields}
    again = msgspec.structs.replace(Head.decode(used.encode()), version=used.version)
    assert again == used


@pytest.mark.parametrize("field", sorted(OWNERS))
def test_a_table_that_needs_an_absent_feature_is_refused_by_its_name(
    field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = OWNERS[field]
    text = use_features([field]).encode()
    rest = tuple(feature for feature in list_installed() if feature.name != name)
    monkeypatch.setattr(heads, "list_installed", lambda: rest)
    assert Head.decode(HEAD.encode()).stream == "books"
    with pytest.raises(TableError, match=rf"needs version 1 of feature '{name}'.*does not have it") as refused:
        Head.decode(text)
    assert name in refused.value.next_step


@given(st.sampled_from(sorted(OWNERS)), st.integers(2, 100))
def test_a_table_that_needs_a_newer_version_of_a_feature_is_refused(field: str, version: int) -> None:
    name = OWNERS[field]
    text = use_features([field]).encode().replace(f'"{name}":1', f'"{name}":{version}')
    with pytest.raises(TableError, match=rf"needs version {version} of feature '{name}'.*has version 1 of it"):
        Head.decode(text)


def test_a_feature_that_no_one_knows_is_refused() -> None:
    text = HEAD.encode().replace("{", '{"features":{"teleport":1},', 1)
    with pytest.raises(TableError, match="'teleport'"):
        Head.decode(text)


def test_each_field_of_a_feature_is_in_the_head_and_has_one_owner() -> None:
    assert len(OWNERS) == sum(len(feature.head_fields) for feature in list_installed())
    assert set(OWNERS) <= set(TYPES)
