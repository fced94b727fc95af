"""The map of regions: what was told last counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlogd.errors import Corrupt
from binlogd.tidb.meta_keys import pd_key
from binlogd.upstream.tikv.regions import Region, RegionMap
from binlogd.wire.generated import metapb

keys = st.binary(max_size=2).map(lambda key: key.replace(b"\xff", b"z"))


def region(number: int, start: bytes, end: bytes, *, version: int = 1, store: int = 1) -> Region:
    peers = [metapb.Peer(number * 10 + each, each) for each in (1, 2)]
    meta = metapb.Region(number, pd_key(start), pd_key(end), metapb.RegionEpoch(1, version), peers)
    return Region.of(meta, next(each for each in peers if each.store_id == store))


@given(
    told=st.lists(st.tuples(keys, keys), max_size=30),
    asked=st.lists(keys, min_size=1, max_size=20),
)
def test_a_key_is_in_the_region_that_was_told_last_or_in_none(
    told: list[tuple[bytes, bytes]], asked: list[bytes]
) -> None:
    regions, kept = RegionMap(), list[Region]()
    for number, (start, end) in enumerate(told, 1):
        if end and start >= end:
            continue
        new = region(number, start, end)
        regions.put(new)
        kept = [
            each
            for each in kept
            if (each.end and each.end <= new.start) or (new.end and new.end <= each.start)
        ]
        kept.append(new)
    assert len(regions) == len(kept)
    for key in asked:
        assert regions.find(key) == next((each for each in kept if each.holds(key)), None)


def test_a_region_that_was_wrong_is_forgotten_and_what_is_newer_is_kept() -> None:
    regions, old = RegionMap(), region(1, b"a", b"c")
    regions.put(old)
    regions.forget(old)
    assert regions.find(b"b") is None
    newer = region(1, b"a", b"c", version=2)
    regions.put(newer)
    regions.forget(old)
    regions.lead(old, metapb.Peer(12, 2))
    assert regions.find(b"b") == newer
    regions.lead(newer, metapb.Peer(12, 2))
    led = regions.find(b"b")
    assert led is not None
    assert led.leader == metapb.Peer(12, 2)


def test_a_half_that_was_split_off_is_led_where_the_whole_was() -> None:
    whole = region(1, b"a", b"z", store=2)
    half = Region.of(
        metapb.Region(
            2, pd_key(b"m"), pd_key(b"z"), metapb.RegionEpoch(1, 2), [metapb.Peer(22, 2)]
        ),
        None,
    )
    assert half.led_by_store_of(whole).leader == metapb.Peer(22, 2)
    assert half.led_by_store_of(region(1, b"a", b"z", store=1)).leader is None


def test_when_they_are_too_many_they_are_asked_for_again() -> None:
    regions = RegionMap(most=3)
    for number in range(5):
        regions.put(region(number + 1, b"%d" % number, b"%d" % (number + 1)))
        assert len(regions) <= 3
        assert regions.find(b"%d" % number) is not None


def test_bounds_that_pd_cannot_have_told_are_corrupt() -> None:
    with pytest.raises(Corrupt):
        Region.of(metapb.Region(1, b"t", b""), None)
