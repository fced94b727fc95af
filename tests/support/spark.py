"""Snapshots from one warm Spark session, so that a test file pays for one start only."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pyspark
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from binlogd.snapshot import job as job_module
from binlogd.snapshot.bases import choice
from binlogd.snapshot.formats.file_kinds import PLAIN_PARQUET, FileKind
from binlogd.snapshot.process.jobdir import Pinned, pinned
from binlogd.snapshot.process.session import EXPORT_SETTINGS, session
from binlogd.snapshot.publishing.publish import publish, read_manifest
from binlogd.snapshot.spec import (
    ChangesOptions,
    ExportSpec,
    Manifest,
    Report,
    SessionSpec,
    TypeOptions,
)
from binlogd.tso import NO_TS, Tso
from tests.support import two_executors
from tests.support.tried import library, tried

ROOT = Path(__file__).parents[2]
TYPES = TypeOptions(invalid_text="replace")


class WarmSpark:
    """Exports as the child process does, without starting one each time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = itertools.count()
        self._local: SparkSession | None = None
        (directory / "scratch").mkdir()
        self._home = _without_zip(directory / "home")

    @property
    def spark(self) -> SparkSession:
        """The session itself, which begins when it is asked for."""
        if self._local is None:
            self._local = self._session({})
        return _told(self._local)

    @contextmanager
    def on_two_executors(self, more: Mapping[str, str]) -> Iterator[SparkSession]:
        """One on two executors in its place, in the same JVM, with settings more."""
        if SparkContext._gateway is None:
            self._local = self._session({})  # what a JVM begins with is set for all its sessions
        self.stop()
        session = self._session({**two_executors.SETTINGS, **more})
        try:
            yield _told(session)
        finally:
            session.stop()

    def export(
        self,
        data_dir: Path,
        history: bytes,
        as_of: Tso = NO_TS,
        *,
        base: Path | None = None,
        time_zone: str = "",
        types: TypeOptions = TYPES,
        kind: FileKind = PLAIN_PARQUET,
    ) -> Path:
        """A published snapshot. Raises what the job raises."""
        job, staging, out, jobs = self._new_job(history)
        with pinned(data_dir, job) as log_files:
            needs = choice.Needs(as_of, log_files.gone_ts, None, types)
            chosen = choice.choose(str(base or choice.NONE), out, needs)
            spec = msgspec.structs.replace(
                self._spec(log_files, jobs, as_of, staging),
                types=types,
                base=str(chosen.directory or ""),
                base_ts=chosen.commit_ts,
                base_time_zone=time_zone,
                format=kind.format,
                layout=kind.layout,
            )
            report = job_module.build(self.spark, spec, lambda _: None)
        return publish(staging, out, _manifest(report, types, kind))

    def stage(self, data_dir: Path, history: bytes) -> ExportSpec:
        """The spec of an export that is staged with marks, and not published."""
        spec = self.spec(data_dir, history)
        job_module.build(self.spark, spec, lambda _: None)
        return spec

    def spec(self, data_dir: Path, history: bytes, base: Path | None = None) -> ExportSpec:
        """That of an export with marks, on a base; its input stays pinned."""
        job, staging, _, jobs = self._new_job(history)
        with pinned(data_dir, job) as log_files:
            return msgspec.structs.replace(
                self._spec(log_files, jobs, NO_TS, staging),
                state=str(job / "state"),
                base=str(base or ""),
                base_ts=read_manifest(base).commit_ts if base else NO_TS,
            )

    def changes(
        self,
        data_dir: Path,
        history: bytes,
        from_ts: Tso,
        to_ts: Tso = NO_TS,
        *,
        all_versions: bool = False,
        has_before: bool = False,
    ) -> Path:
        """Published changes. Raises what the job raises."""
        job, staging, out, jobs = self._new_job(history)
        with pinned(data_dir, job) as log_files:
            spec = msgspec.structs.replace(
                self._spec(log_files, jobs, to_ts, staging),
                changes=ChangesOptions(from_ts, all_versions, has_before),
            )
            report = job_module.build(self.spark, spec, lambda _: None)
        return publish(staging, out, _manifest(report, TYPES))

    def stop(self) -> None:
        """Ends the session, where there is one; the JVM ends with the tests."""
        if self._local is not None:
            self._local.stop()
        self._local = None

    def _session(self, more: Mapping[str, str]) -> SparkSession:
        spec = SessionSpec(scratch=str(self._directory / "scratch"))
        with pytest.MonkeyPatch.context() as patch:  # for the JVM, which keeps it
            patch.setenv("SPARK_HOME", str(self._home))
            return session(spec, {**EXPORT_SETTINGS, **more})

    def _new_job(self, history: bytes) -> tuple[Path, Path, Path, Path]:
        """Directories of a new job: its own, what it stages, what is published; its history."""
        job = self._directory / f"job-{next(self._numbers)}"
        staging, out = job / "staging", job / "out"
        for path in (staging, out):
            path.mkdir(parents=True)
        jobs = job / "history.json"
        jobs.write_bytes(history)
        return job, staging, out, jobs

    def _spec(self, log_files: Pinned, history: Path, as_of: Tso, staging: Path) -> ExportSpec:
        return ExportSpec(
            segments=log_files.segments,
            is_headless=log_files.gone_ts > NO_TS,
            gone_ts=log_files.gone_ts,
            schema_history=str(history),
            as_of=as_of,
            known_resolved_ts=0,
            out=str(self._directory / "none"),
            staging=str(staging),
            scratch=str(self._directory / "scratch"),
            ignore_schemas=("mysql",),
            types=TYPES,
            partitions=2,
        )


def _without_zip(home: Path) -> Path:
    """The Spark that is installed, for its scripts and executors. Its workers find no PySpark in a
    zip there, which each would compile anew: as for a JVM that `gateway.begun` starts."""
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name != "python":
            (home / entry.name).symlink_to(entry)
    return home


def _told(spark: SparkSession) -> SparkSession:
    """The test that runs has to do with it."""
    virtual_machine = spark.sparkContext._jvm
    assert virtual_machine is not None
    library("pyspark")
    tried("Java, under Spark", str(virtual_machine.System.getProperty("java.version")))
    return spark


@contextmanager
def warm_spark(directory: Path) -> Iterator[WarmSpark]:
    """A session for the tests of one file; skips them where there is no Java."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("no Java on this machine")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'binlogd' / 'spark'}")
        patch.delenv("SPARK_HOME", raising=False)
        spark = WarmSpark(directory)
        try:
            yield spark
        finally:
            spark.stop()


def forget_sessions(patch: pytest.MonkeyPatch) -> None:
    """As in a process that has not run Spark: a session leaves variables that its scripts read."""
    for name in [name for name in os.environ if name.startswith("SPARK_") and name != "SPARK_HOME"]:
        patch.delenv(name)


def _manifest(report: Report, types: TypeOptions, kind: FileKind = PLAIN_PARQUET) -> Manifest:
    return Manifest(
        **msgspec.structs.asdict(report),
        binlogd_version="test",
        cluster_id=None,
        time="",
        log=(),
        types=types,
        data_format=kind.format,
        layout=kind.layout,
    )
