"""One bug in a copy of the tree, and who notices it.

The sources in the copy run plain, whatever is compiled here. Each test is a process of its own with
a limit of time, so that a bug that makes it wait for ever is found as well. All of them are run
once without a bug, and so is a seed that finds one: what fails there too shows nothing.
"""

from __future__ import annotations

import compileall
import multiprocessing
import os
import re
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from msgspec.structs import replace

from tests.mutants.catalogue import Bug
from tests.mutants.forked import LIBRARIES, run_module
from tests.mutants.results import ROOT, BySeeds, ByTests, Form, How

TEST_LIMIT_S = 120
"""Of one named test; on a quiet machine none takes a tenth of that."""
END_LIMIT_S = 60
"""More, until a process that ignores the limit of its test is ended."""
SEED_LIMIT_S = 60
SHORT_LIMIT_S = 15
SEEDS_TOGETHER = 20
"""In one process, so that a seed that does not end is noticed in time."""
_LEFT_OUT = shutil.ignore_patterns(
    ".*", "*.so", "*.egg-info", "build", "dist", "site", "native.json"
)
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(list(LIBRARIES))
_KEPT = (".importlinter", ".dockerignore", ".gitignore")
_FAILED = 1
"""pytest's exit code when tests ran and some failed; the simulation's when a seed did."""


class Copy:
    """A tree of its own, for one bug at a time."""

    def __init__(self, place: Path, root: Path = ROOT) -> None:
        self.place = place
        shutil.copytree(root, place, ignore=_LEFT_OUT)
        for name in _KEPT:
            shutil.copy2(root / name, place)
        if (root / ".venv").exists():
            (place / ".venv").symlink_to((root / ".venv").resolve())

    def compile(self) -> None:
        """Every module once: the processes that run here write down none. What Python has compiled
        beside the sources was copied along."""
        for folder in ("binlogd", "tests"):
            compileall.compile_dir(self.place / folder, quiet=2)

    @contextmanager
    def planted(self, bug: Bug) -> Iterator[None]:
        """With the bug in it; as it was behind that. Raises ValueError."""
        path = self.place / bug.file
        before, status = path.read_text(), path.stat()
        path.write_text(bug.planted(before))
        try:
            yield
        finally:
            path.write_text(before)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    def run(self, arguments: Sequence[str], limit_s: float) -> Ended:
        """`python -m` with arguments, in the copy; ended with all that it started at the limit."""
        said = self.place.with_name("said")
        process = _FORKS.Process(target=run_module, args=(str(self.place), str(said), arguments))
        process.start()
        process.join(limit_s)
        code = process.exitcode
        assert process.pid is not None, "it was started"
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # also what it has left behind
        process.join()
        return Ended(code, said.read_text(errors="replace"))

    # --- tests -------------------------------------------------------------------------------

    def by_tests(self, bug: Bug, sound: dict[str, bool]) -> ByTests:
        """The first of its tests that finds it. `sound` is what is known of tests without a bug,
        and grows. Raises RuntimeError where one cannot be run."""
        begin_s, found = monotonic(), ByTests(how="missed", tests_run=len(bug.tests))
        with self.planted(bug):
            for count, test in enumerate(bug.tests, start=1):
                how = self._test(test)
                if how != "missed":
                    found = ByTests(how=how, test=test, tests_run=count)
                    break
        if found.test and found.test not in sound:
            sound[found.test] = self._test(found.test) == "missed"
        if found.test and not sound[found.test]:
            found = replace(found, how="broken")
        return replace(found, seconds=round(monotonic() - begin_s, 1))

    def _test(self, node_id: str) -> How:
        # plain: what an assertion compared is read by nobody here, and costs more than most tests
        same = ("-q", "-x", "-p", "no:cacheprovider", "--nothing-skipped", "--assert=plain")
        gate = ("-m", "not soak")
        limits = (f"--timeout={TEST_LIMIT_S}", "--hypothesis-profile=repeatable")
        ended = self.run(["pytest", *same, *gate, *limits, node_id], TEST_LIMIT_S + END_LIMIT_S)
        if ended.code is None or "Failed: Timeout" in ended.text:
            return "hung"
        if ended.code not in (0, _FAILED) or bool(ended.code) != ("failed" in ended.text):
            raise RuntimeError(f"{node_id} was not run: pytest says {ended.code}\n{ended.text}")
        return "failed" if ended.code == _FAILED else "missed"

    # --- seeds -------------------------------------------------------------------------------

    def by_seeds(self, bug: Bug, most: int, *, form: Form = "") -> BySeeds:
        """The first of its seeds that finds it, of `most` at the most, in long lives or in short
        ones. Raises RuntimeError where the simulation cannot be run."""
        first, last = map(int, bug.seeds.split("-"))
        last = min(last, first + most - 1)
        begin_s, seed = monotonic(), -1
        how: How = "missed"
        with self.planted(bug):
            for begin in range(first, last + 1, SEEDS_TOGETHER):
                how, seed = self._seeds(begin, min(begin + SEEDS_TOGETHER - 1, last), form)
                if how != "missed":
                    break
        if seed >= 0 and self._seeds(seed, seed, form)[0] != "missed":
            how = "broken"
        return BySeeds(
            how=how,
            seeds=f"{first}-{last}",
            tried=(seed if seed >= 0 else last) - first + 1,
            seed=seed,
            form=form,
            seconds=round(monotonic() - begin_s, 1),
        )

    def _seeds(self, first: int, last: int, form: Form) -> tuple[How, int]:
        """How they ended, and the seed that did, -1 for none."""
        each_s = SHORT_LIMIT_S if form else SEED_LIMIT_S
        limit_s = each_s * (last - first + 1) + END_LIMIT_S
        lives = ["--seeds", f"{first}-{last}", *(["--short"] if form else [])]
        ended = self.run(["tests.sim", *lives, "--until-failure"], limit_s)
        if ended.code is None:
            if first == last:
                return "hung", first
            for seed in range(first, last + 1):  # which one it was
                if (found := self._seeds(seed, seed, form))[0] != "missed":
                    return found
        said = re.findall(r"^seed (\d+) ", ended.text, re.MULTILINE)
        if ended.code == _FAILED and said:
            return "failed", int(said[-1])
        if ended.code == 0:
            return "missed", -1
        raise RuntimeError(f"the simulation says {ended.code}\n{ended.text[-4000:]}")


class Ended(NamedTuple):
    """How a process ended: its code, None when it had to be ended, and what it said."""

    code: int | None
    text: str
