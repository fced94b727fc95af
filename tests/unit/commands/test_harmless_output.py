"""Nothing of what others wrote is obeyed by the terminal of whoever runs a command."""

from __future__ import annotations

import pytest

from binlogd import cli
from binlogd.commands.output import say, say_facts, say_table, warn
from binlogd.host.words import harmless

ODD = "a\x1b]0;title\x07\x1b[2Jb\r\x9bc\x7f"
SHOWN = r"a\x1b]0;title\x07\x1b[2Jb\r\x9bc\x7f"


def test_what_a_terminal_would_obey_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    say(ODD, ODD)
    warn(ODD)
    say_table(["name"], [[ODD.replace("[", r"\[")]])
    say_facts([("name", ODD)])
    with pytest.raises(SystemExit):
        cli._fail(ODD, code=1)
    said = capsys.readouterr()
    assert (said.out + said.err).count(SHOWN) == 6
    assert not {"\x1b", "\x07", "\r", "\x9b", "\x7f"}.intersection(said.out + said.err)


def test_a_name_between_colons_is_no_picture(capsys: pytest.CaptureFixture[str]) -> None:
    say(":ok:")
    say_table([":ok:"], [[":ok:"]])
    say_facts([(":ok:", ":ok:")])
    with pytest.raises(SystemExit):
        cli._fail(":ok:", code=1)
    said = capsys.readouterr()
    assert (said.out + said.err).count(":ok:") == 6


def test_lines_and_letters_stay() -> None:
    assert harmless("übrig\n\t表 🙂") == "übrig\n\t表 🙂"
