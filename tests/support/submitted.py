"""What `binlogd pipeline` makes of its words, as spark-submit gives them to it."""

from __future__ import annotations

import pytest

from binlogd import cli
from binlogd.spark import submit
from binlogd.spark.submit import Arguments


def arguments_of(*words: str) -> Arguments:
    """What would run."""
    found: list[Arguments] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(submit, "run_submitted", lambda given, _: found.append(given))
        with pytest.raises(SystemExit) as ended:
            cli.submitted("pipeline", words)
    assert ended.value.code == 0
    (arguments,) = found
    return arguments
