"""Each region error has its reaction, and waits have limits."""

from __future__ import annotations

from random import Random

import pytest

from binlogd.upstream.tikv.reaction import (
    AT_ONCE,
    BUSY,
    LEADERLESS,
    NOT_READY,
    Hopeless,
    Patience,
    Reaction,
    Wait,
    react,
)
from binlogd.wire.generated import errorpb, metapb

ELSEWHERE = {
    "region_not_found": errorpb.RegionNotFound(1),
    "key_not_in_region": errorpb.KeyNotInRegion(b"k", 1),
    "epoch_not_match": errorpb.EpochNotMatch(),
    "mismatch_peer_id": errorpb.MismatchPeerId(1, 2),
    "is_witness": errorpb.IsWitness(1),
}
BUSY_KINDS = {
    "server_is_busy": errorpb.ServerIsBusy("scheduler", 100),
    "disk_full": errorpb.DiskFull([1], "full"),
    "recovery_in_progress": errorpb.RecoveryInProgress(1),
}
NOT_READY_KINDS = {
    "stale_command": errorpb.StaleCommand(),
    "proposal_in_merging_mode": errorpb.ProposalInMergingMode(1),
    "region_not_initialized": errorpb.RegionNotInitialized(1),
    "data_is_not_ready": errorpb.DataIsNotReady(1, 2, 3),
    "read_index_not_ready": errorpb.ReadIndexNotReady("x", 1),
    "max_timestamp_not_synced": errorpb.MaxTimestampNotSynced(),
}
HOPELESS = {
    "raft_entry_too_large": errorpb.RaftEntryTooLarge(1, 9),
    "flashback_in_progress": errorpb.FlashbackInProgress(1, 2),
    "flashback_not_prepared": errorpb.FlashbackNotPrepared(1),
}


def heard(kind: str, content: object) -> errorpb.Error:
    """As it comes over the wire, where an empty message is easily lost."""
    return errorpb.Error().parse(bytes(errorpb.Error(message="m", **{kind: content})))  # type: ignore[arg-type] # one field by its name


@pytest.mark.parametrize("kind", sorted(ELSEWHERE))
def test_what_is_elsewhere_is_asked_of_pd_at_once(kind: str) -> None:
    assert react(heard(kind, ELSEWHERE[kind])) == Reaction(kind, AT_ONCE, forgets_region=True)


@pytest.mark.parametrize("kind", sorted(BUSY_KINDS))
def test_who_is_busy_is_left_alone_for_seconds(kind: str) -> None:
    assert react(heard(kind, BUSY_KINDS[kind])) == Reaction(kind, BUSY)


@pytest.mark.parametrize("kind", sorted(NOT_READY_KINDS))
def test_who_is_not_ready_is_asked_again_soon(kind: str) -> None:
    assert react(heard(kind, NOT_READY_KINDS[kind])) == Reaction(kind, NOT_READY)


@pytest.mark.parametrize("kind", sorted(HOPELESS))
def test_what_cannot_be_answered_fails(kind: str) -> None:
    assert react(heard(kind, HOPELESS[kind])) == Hopeless(kind, "m")


def test_another_store_makes_its_address_forgotten() -> None:
    found = react(heard("store_not_match", errorpb.StoreNotMatch(1, 2)))
    assert found == Reaction("store_not_match", AT_ONCE, forgets_region=True, forgets_store=True)


def test_a_leader_that_is_named_is_asked_at_once_and_one_that_is_not_is_waited_for() -> None:
    named = errorpb.NotLeader(1, metapb.Peer(2, 3))
    assert react(heard("not_leader", named)) == Reaction("not_leader", AT_ONCE)
    nobody = errorpb.NotLeader(1)
    assert react(heard("not_leader", nobody)) == Reaction(
        "not_leader", LEADERLESS, forgets_region=True
    )


def test_an_error_that_nobody_knows_is_asked_again_about() -> None:
    assert react(errorpb.Error(message="new")) == Reaction("other", NOT_READY, forgets_region=True)


def test_no_kind_of_error_is_left_out() -> None:
    known = {"message", "not_leader", "store_not_match"}
    known |= {*ELSEWHERE, *BUSY_KINDS, *NOT_READY_KINDS, *HOPELESS}
    assert set(errorpb.Error().to_pydict(include_default_values=True, casing=str)) == known  # type: ignore[arg-type] # any function of a name


def test_waits_grow_up_to_a_limit_each_kind_by_itself() -> None:
    patience = Patience(Random(1))
    wait = Wait("some", 0.1, 1.0)
    waits = [patience.next_s(wait, "busy") for _ in range(200)]
    for number, each in enumerate(waits):
        longest = min(1.0, 0.1 * 2**number)
        assert longest / 2 <= each <= longest
    assert patience.next_s(Wait("other", 0.1, 1.0), "gone") <= 0.1
    assert (patience.attempts, patience.reason) == (201, "gone")
