"""Keys of TiDB's schema and of rows: the golden vectors, and there and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlogd.errors import Corrupt
from binlogd.tidb import meta_keys

GOLDEN = Path(__file__).parents[2] / "golden" / "vectors.json"
VECTORS = {each["id"]: bytes.fromhex(each["hex"]) for each in json.loads(GOLDEN.read_text())}

MADE = {
    "k-ddlhist": meta_keys.job_key(888),
    "k-tid": meta_keys.hash_key(meta_keys.database_name(1), b"TID:3"),
    "k-tid2": meta_keys.hash_key(meta_keys.database_name(56), b"TID:108"),
    "k-schemaver": meta_keys.string_key(meta_keys.SCHEMA_VERSION),
    "k-diff": meta_keys.string_key(b"Diff:26"),
    "k-dbs": meta_keys.hash_key(meta_keys.DATABASES, meta_keys.database_name(2)),
    "k-table": meta_keys.hash_key(meta_keys.database_name(2), b"Table:56"),
    "k-ddlhist-prefix": meta_keys.hash_range(meta_keys.HISTORY).begin,
    "k-region": meta_keys.pd_key(VECTORS["k-record"]),
}

names = st.binary(max_size=40)


@pytest.mark.parametrize("vector", sorted(MADE))
def test_keys_are_the_golden_ones(vector: str) -> None:
    assert MADE[vector].hex() == VECTORS[vector].hex()


@pytest.mark.parametrize("vector", ["k-ddlhist", "k-tid", "k-tid2", "k-dbs", "k-table"])
def test_a_field_is_read_back(vector: str) -> None:
    name, field = meta_keys.field_of(VECTORS[vector])
    assert meta_keys.hash_key(name, field) == VECTORS[vector]


def test_what_a_field_says() -> None:
    assert meta_keys.job_id_of(meta_keys.field_of(VECTORS["k-ddlhist"])[1]) == 888
    assert meta_keys.table_id_of(meta_keys.field_of(VECTORS["k-table"])[1]) == 56
    assert meta_keys.table_id_of(b"TID:3") is None
    assert meta_keys.key_of_pd(VECTORS["k-region"]) == VECTORS["k-record"]


@given(name=names, field=names)
def test_any_field_is_read_back_and_lies_in_the_range_of_its_hash(
    name: bytes, field: bytes
) -> None:
    key = meta_keys.hash_key(name, field)
    begin, end = meta_keys.hash_range(name)
    assert meta_keys.field_of(key) == (name, field)
    assert begin <= key < end


@given(a=names, b=names, one=names, two=names)
def test_hashes_do_not_meet_and_fields_keep_their_order(
    a: bytes, b: bytes, one: bytes, two: bytes
) -> None:
    assert (meta_keys.hash_key(a, one) < meta_keys.hash_key(a, two)) == (one < two)
    begin, end = meta_keys.hash_range(a)
    assert a == b or not begin <= meta_keys.hash_key(b, one) < end
    assert (meta_keys.pd_key(b"k" + one) < meta_keys.pd_key(b"k" + two)) == (one < two)
    assert meta_keys.key_of_pd(meta_keys.pd_key(one)) == one


@given(prefix=names, rest=names)
def test_what_is_behind_a_prefix(prefix: bytes, rest: bytes) -> None:
    after = meta_keys.after_prefix(prefix)
    assert not after or prefix + rest < after
    assert not after or not after.startswith(prefix)


@pytest.mark.parametrize(
    "vector", ["k-schemaver", "k-joblist-item", "k-record", "k-ddlhist-prefix"]
)
def test_what_is_no_field_is_corrupt(vector: str) -> None:
    with pytest.raises(Corrupt, match=VECTORS[vector].hex()):
        meta_keys.field_of(VECTORS[vector])


@pytest.mark.parametrize("bound", [b"t", VECTORS["k-record"], VECTORS["k-region"] + b"x"])
def test_what_is_no_bound_of_a_region_is_corrupt(bound: bytes) -> None:
    with pytest.raises(Corrupt, match="no bound of a region"):
        meta_keys.key_of_pd(bound)


def test_a_history_field_of_another_length_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="3 bytes"):
        meta_keys.job_id_of(b"abc")
