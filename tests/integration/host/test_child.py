"""A process that steps back, in a session of its own and in that of others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from binlogd.host.child import SESSION_NICE

STEPS_BACK = """
import os, sys
from pathlib import Path
from binlogd.host import child

child._SESSION = Path(sys.argv[1])
child.step_back()
print("nice", os.nice(0))
"""


def stepped_back(session: Path, *, is_own: bool) -> str:
    words = [sys.executable, "-c", STEPS_BACK, str(session)]
    done = subprocess.run(
        words, capture_output=True, text=True, check=True, start_new_session=is_own
    )
    assert f"nice {min(19, os.nice(0) + 10)}" in done.stdout
    return done.stdout


@pytest.mark.parametrize("is_own", [True, False])
def test_the_niceness_of_a_session_is_changed_by_whoever_leads_it(
    *, is_own: bool, tmp_path: Path
) -> None:
    session = tmp_path / "autogroup"
    session.touch()
    stepped_back(session, is_own=is_own)
    assert session.read_text() == (str(SESSION_NICE) if is_own else "")


def test_where_sessions_have_no_niceness_it_is_said_and_the_process_goes_on(
    tmp_path: Path,
) -> None:
    told = stepped_back(tmp_path / "no" / "such" / "file", is_own=True)
    assert "session_not_stepped_back" in told
