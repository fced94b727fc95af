"""The small recording that stands for a larger one is a part of it."""

from __future__ import annotations

from tests.support.few import files, stored


def test_few_is_what_its_tables_were_sent_in_the_whole_recording() -> None:
    assert stored() == files(), "`python -m tests.support.few` writes it"
