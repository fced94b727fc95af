"""Tables of exports show what others wrote as it is, and not as markup."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from binlogd.commands import export_via
from binlogd.commands.exports import exports
from binlogd.settings.config import Config
from binlogd.settings.setup import Setup
from binlogd.snapshot.export_queue import AskedExport, ExportJob
from binlogd.snapshot.spec import MANIFEST_NAME
from tests.support.snapshots import snapshot

ODD = "[/x] [red]"


def test_an_export_that_was_asked_for_in_odd_words_is_listed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = ExportJob(1, AskedExport(as_of=ODD, format=ODD), "running", stage=ODD, message=ODD)
    body = msgspec.json.encode([job])
    monkeypatch.setattr(export_via, "asked", lambda *_: (200, body))
    export_via.show_exports(Setup(Config()), as_json=False)
    assert capsys.readouterr().out.count(ODD) == 4


def test_a_manifest_with_odd_words_is_listed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path, _ = snapshot(tmp_path, 100, [(1, "id", pa.array([1]))])
    manifest = path / MANIFEST_NAME
    text = re.sub('"time": ""', f'"time": "{ODD}"', manifest.read_text())
    manifest.write_text(text)
    exports(str(tmp_path), named="", via="", config_file=None, as_json=False)
    assert ODD in capsys.readouterr().out
