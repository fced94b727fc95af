"""The checkpoint is read and written as the original does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlogd.drainer.checkpoint import Checkpoint
from binlogd.errors import ConfigError
from binlogd.tso import Tso


def test_the_json_is_that_of_the_original() -> None:
    checkpoint = Checkpoint(Tso(414529105591271429), schema_version=45)
    assert checkpoint.to_json() == (
        b'{"consistent":false,"commitTS":414529105591271429,"ts-map":{},"schema-version":45}'
    )


TS_MAPS = st.dictionaries(
    st.sampled_from(["primary-ts", "secondary-ts"]), st.integers(0, 2**63 - 1)
)


@given(
    st.builds(
        Checkpoint,
        commit_ts=st.integers(0, 2**63 - 1).map(Tso),
        consistent=st.booleans(),
        schema_version=st.integers(0, 2**40),
        ts_map=TS_MAPS,
    )
)
def test_what_is_written_is_read_back(checkpoint: Checkpoint) -> None:
    assert Checkpoint.from_json(checkpoint.to_json()) == checkpoint


def test_missing_and_unknown_keys_are_let_pass() -> None:
    assert Checkpoint.from_json('{"commitTS": 7, "later": [1]}') == Checkpoint(Tso(7))
    assert Checkpoint.from_json('{"commitTS": 7, "ts-map": null}') == Checkpoint(Tso(7))


def test_the_names_of_old_versions_are_understood() -> None:
    stored = '{"commitTS": 7, "ts-map": {"master-ts": 5, "slave-ts": 6}}'
    assert Checkpoint.from_json(stored).ts_map == {"primary-ts": 5, "secondary-ts": 6}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"commitTS": "x"}', "commitTS = 7"])
def test_anything_else_is_refused_with_a_way_out(text: str) -> None:
    with pytest.raises(ConfigError, match="initial-commit-ts"):
        Checkpoint.from_json(text)
