"""Leases by a clock: who keeps alive stays, who does not ends, and a pause of ours ends nobody."""

from __future__ import annotations

import pytest

from binlogd.errors import EtcdRefused
from binlogd.upstream.keyspace.versions import TTL_MAX_S, Leases


def test_who_is_kept_alive_stays() -> None:
    leases = Leases({}, 0.0)
    leases.add(1, 10, now_s=0.0)
    leases.add(2, 10, now_s=0.0)
    assert leases.keep(1, now_s=6.0) == 10
    assert list(leases.ended(now_s=10.0)) == [2]
    leases.remove(2)
    assert list(leases.ended(now_s=15.9)) == []
    assert list(leases.ended(now_s=16.0)) == [1]


def test_who_has_gone_is_gone() -> None:
    leases = Leases({}, 0.0)
    assert leases.keep(1, now_s=0.0) == 0
    with pytest.raises(EtcdRefused, match="requested lease not found"):
        leases.remove(1)


def test_numbers_and_times_are_chosen_as_etcd_does() -> None:
    leases = Leases({5: 60}, 0.0)
    numbers = iter([0, 5, 6])
    assert leases.chosen(0, 1, lambda: next(numbers)) == (6, 2)
    assert leases.chosen(7, 60, lambda: 0) == (7, 60)
    with pytest.raises(EtcdRefused, match="already exists"):
        leases.chosen(5, 60, lambda: 0)
    with pytest.raises(EtcdRefused, match="too large lease TTL"):
        leases.chosen(8, TTL_MAX_S + 1, lambda: 0)


def test_a_pause_of_this_process_is_nobodys_fault() -> None:
    leases = Leases({1: 10, 2: 20}, 0.0)
    leases.pass_over(30.0)  # at 35 s: due at 10 s and 20 s, but nobody could say anything
    assert list(leases.ended(now_s=35.0)) == []
    assert list(leases.ended(now_s=42.0)) == [1]
    leases.pass_over(0.2)  # as any timer is late
    assert list(leases.ended(now_s=42.0)) == [1]


def test_after_a_restart_each_begins_anew() -> None:
    leases = Leases({1: 10}, 100.0)
    assert (list(leases.ended(109.9)), list(leases.ended(110.0))) == ([], [1])
