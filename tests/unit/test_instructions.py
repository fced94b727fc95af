"""What the gate on instructions reads in the files of callgrind."""

from __future__ import annotations

from pathlib import Path

from tests.instructions.gate import Count, _counts


def test_what_other_threads_did_counts_as_well(tmp_path: Path) -> None:
    """From the second dump on, callgrind's `summary` leaves them out."""
    for number, (summary, totals) in enumerate([(900, 900), (300, 880)]):
        (tmp_path / f"out.{number}").write_text(
            f"desc: Trigger: Client Request: index\nsummary: {summary}\n\ntotals: {totals}\n"
        )
    told = [{"path": "index", "items": 10, "unit": "entry"}]
    assert _counts(told, tmp_path.glob("out.*")) == {"index": Count(88.0, "entry", 900 / 880 - 1)}
