"""The patterns that a user writes: regular expressions, and those of `table-migrate-rule`: `?` is
one character, `[a-z]` and `[!a-z]` a set, and `*`, as the last character, any rest.

RE2 reads both. It has the syntax of Go, and no pattern takes more than a time linear in the text. A
byte that is no UTF-8, here a surrogate, is a character of its own. Source: tidb-binlog
pkg/filter/filter.go, tidb-tools pkg/table-rule-selector.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import re2

from binlogd.errors import ConfigError

Matches = Callable[[str], bool]
_UTF8 = ("utf-8", "surrogatepass")
_TODO = r"write it in the syntax of RE2: no lookahead, no reference to a group, \z for the end"
_GLOB = re.compile(r"\[(?P<but>!?)(?P<set>.[^]]*)\]|(?P<bad>\*(?!\Z)|\[)|.", re.DOTALL)


def regular(
    pattern: str, place: str = "", *, is_whole: bool = False, is_case_sensitive: bool = False
) -> Matches:
    """Whether a text holds, or `is_whole` is, what an expression describes. Raises ConfigError."""
    options = re2.Options()
    options.case_sensitive = is_case_sensitive
    options.never_capture, options.log_errors = True, False
    try:
        compiled = re2.compile(pattern.encode(*_UTF8), options)
    except re2.error as error:
        said = f"{place}{pattern!r} is no regular expression: "
        raise ConfigError(said + error.args[0].decode(errors="replace"), todo=_TODO) from error
    match = compiled.fullmatch if is_whole else compiled.search
    return lambda text: match(text.encode(*_UTF8)) is not None


def glob(pattern: str, *, is_case_sensitive: bool) -> Matches:
    """Whether a name is one of those that a pattern stands for. Raises ConfigError."""
    place = f'syncer.table-migrate-rule: pattern "{pattern}": '

    def expression(part: re.Match[str]) -> str:
        if part["bad"]:
            raise ConfigError(f"{place}`*` may only be the last character, and `[` needs its `]`")
        if part["set"]:
            return f"[{part['but'] and '^'}{re.escape(part['set'])}]".replace(r"\-", "-")
        return {"*": ".*", "?": "."}.get(part[0]) or re.escape(part[0])

    whole = "(?s)" + _GLOB.sub(expression, pattern)
    return regular(whole, place, is_whole=True, is_case_sensitive=is_case_sensitive)
