"""The long run of a night: no stage hides another, and what it ends with is the report."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

from tests.nightly import BENCHES, ROOT, Stage, all_well, stages


def python(code: str) -> tuple[str, ...]:
    return sys.executable, "-c", code


def test_a_stage_that_fails_hides_no_other_and_the_night_is_red(tmp_path: Path) -> None:
    told, result = tmp_path / "told", tmp_path / "build" / "nightly.json"
    say = f"open({str(told)!r}, 'a').write('{{}}\\n')"
    every = [
        Stage("first", python(f"{say.format('first')}; raise SystemExit(3)"), ""),
        Stage("missing", ("/there/is/no/such/program",), ""),
        Stage("report", python(say.format("report")), ""),
    ]
    assert not all_well(every, [], result)
    assert told.read_text() == "first\nreport\n"
    ran = json.loads(result.read_text())
    assert [each["exit_code"] for each in ran] == [3, 127, 0]
    assert all_well(every, ["report"], result)
    assert [each["exit_code"] for each in json.loads(result.read_text())] == [None, None, 0]


def test_every_step_is_there_and_the_report_is_the_last() -> None:
    every = stages(minutes="1", seconds="1", seeds=3)
    assert [each.name for each in every][-1] == "report"
    assert {each.name for each in every} >= {
        *(
            "instructions",
            "soak",
            "properties",
            "load",
            "fuzz",
            "seeds",
            "mutants",
            "bench",
            "table",
        ),
    }
    modules = [each.words[2] for each in every if each.words[1] == "-m"]
    assert len(modules) == len(every) - 1
    assert [each for each in modules if importlib.util.find_spec(each) is None] == []
    benches = ROOT / "tests" / "bench"
    missing = [each for each in BENCHES.split() if not (benches / f"bench_{each}.py").exists()]
    assert missing == []
