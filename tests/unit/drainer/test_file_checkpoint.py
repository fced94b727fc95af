"""The savepoint of the file sink: the original's TOML, ours, and what binlogctl makes."""

from __future__ import annotations

import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.files.checkpoint import DurableUpTo, Savepoint
from binlogd.errors import ConfigError
from binlogd.tso import Tso
from tests.support.artefacts import ARTEFACTS

GOLDEN = ARTEFACTS / "drainer_file_ddl.tar.gz"
ts = st.integers(0, 2**63 - 1).map(Tso)
checkpoints = st.builds(
    Checkpoint,
    ts,
    st.booleans(),
    st.integers(0, 2**40),
    st.dictionaries(st.sampled_from(["primary-ts", "secondary-ts"]), ts),
)
places = st.none() | st.builds(
    DurableUpTo, st.just("binlog-0000000000000003-20240101000000"), st.integers(0, 2**40), ts
)


@given(checkpoints, places)
def test_what_was_saved_is_loaded(checkpoint: Checkpoint, written: DurableUpTo | None) -> None:
    savepoint = Savepoint(checkpoint, written)
    assert Savepoint.from_toml(savepoint.to_toml(), "savepoint") == savepoint


def test_one_that_was_cut_behind_a_line_is_not_taken_for_one_of_the_original() -> None:
    written = DurableUpTo("binlog-0000000000000003-20240101000000", 7, Tso(470))
    text = Savepoint(Checkpoint(Tso(470), schema_version=5), written).to_toml()
    lines = text.splitlines(keepends=True)
    for kept in range(len(lines)):
        with pytest.raises(ConfigError, match="/data/savepoint is"):
            Savepoint.from_toml(b"".join(lines[:kept]), "/data/savepoint")


def test_without_our_own_part_it_is_the_file_of_the_original() -> None:
    with tarfile.open(GOLDEN) as archive:
        member = archive.extractfile("last/savepoint")
        assert member is not None
        text = member.read()
    savepoint = Savepoint.from_toml(text, "savepoint")
    assert savepoint.checkpoint.commit_ts == 470611042594193417
    assert savepoint.checkpoint.schema_version == 562
    assert savepoint.to_toml() == text


def test_the_file_of_binlogctl_with_a_time_zone_is_understood() -> None:
    text = b"commitTS = 407\n2019-03-05 13:08:05.3 +0000 UTC\n2019-03-05 21:08:05.3 +0800 CST\n"
    assert Savepoint.from_toml(text, "savepoint") == Savepoint(Checkpoint(Tso(407)))


@pytest.mark.parametrize("text", [b"", b"\xff", b"commitTS = 'x'", b"commitTS 5", b"[written]"])
def test_a_file_that_is_nobodys_names_itself(text: bytes) -> None:
    with pytest.raises(ConfigError, match="/data/savepoint is no savepoint"):
        Savepoint.from_toml(text, "/data/savepoint")
