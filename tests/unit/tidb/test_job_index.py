"""Which jobs matter at a moment."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from binlogd.tidb.job_index import JobEntry, JobIndex

ENTRIES = st.lists(
    st.builds(
        lambda start, took, version, job_id: JobEntry(start + took, start, version, job_id),
        st.integers(1, 30),
        st.integers(1, 12),
        st.integers(0, 9),
        st.integers(1, 50),
    ),
    max_size=20,
    unique_by=lambda entry: entry.id,
)


@given(ENTRIES, st.integers(0, 45), st.integers(0, 45))
def test_what_is_in_flight_and_in_use_is_what_a_look_at_every_job_says(
    entries: list[JobEntry], after: int, up_to: int
) -> None:
    index = JobIndex()
    half = len(entries) // 2
    index.add(entries[:half])
    for entry in entries[half:]:
        index.add([entry])
    index.add(entries)
    assert len(index) == len(entries)
    expected = {
        e.id
        for e in entries
        if e.finished_ts > after and e.start_ts <= up_to and e.schema_version > 0
    }
    assert set(index.in_flight(after, up_to)) == expected
    over = [e.schema_version for e in entries if e.finished_ts < up_to]
    assert index.in_use(up_to) == max(over, default=0)


def test_a_job_of_which_nobody_knows_when_it_ended_is_in_flight_for_ever() -> None:
    index = JobIndex([JobEntry(0, 3, 1, 7)])
    assert index.in_flight(10**18, 10**18) == [7]
    assert index.in_use(10**18) == 0
