"""What the searches have found is run again, without their library; `make fuzz` looks for more."""

from __future__ import annotations

import pytest

from tests.fuzz.inputs import HERE, corpus, crashes, names, target

KEPT_BYTES_MAX = 1 << 20
RUN_MAX = 40
"""Of each corpus, evenly; a search runs all of it."""


@pytest.mark.parametrize("name", names())
def test_no_input_that_was_kept_fails(name: str) -> None:
    of = target(name)
    kept = corpus(name)
    for each in kept[:: max(1, len(kept) // RUN_MAX)]:
        of.run(each)
    for reason, data in crashes(name):
        try:
            of.run(data)
        except Exception as error:
            raise AssertionError(f"it fails again, as it did once: {reason}") from error


def test_every_seed_is_read_and_what_is_kept_is_small() -> None:
    for name in names():
        of, tried = target(name), 0
        for seed in of.seeds():
            of.run(seed)
            tried += 1
        assert tried, f"{name} begins nowhere"
    assert sum(path.stat().st_size for path in HERE.rglob("*.txt")) <= KEPT_BYTES_MAX
    kept = {path.stem for path in HERE.glob("*/*.txt")}
    assert kept <= set(names()), "inputs of a target that is no more"
