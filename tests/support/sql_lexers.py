"""How servers tell code from comments, strings and names: a reference, read off their lexers.

Sources: MariaDB 10.11 sql/sql_lex.cc (Lex_input_stream::lex_one_token, consume_comment), MySQL 8.0
and 9.0 sql/sql_lex.cc (the same names; `$tag$ ... $tag$` is a string there), TiDB parser/lexer.go.
The session is as the product's: backslash escapes on, ANSI_QUOTES off unless said.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Server:
    """What differs between those that read."""

    name: str
    version: int
    is_mariadb: bool = False
    has_dollar_quotes: bool = False
    ansi_quotes: bool = False

    def executes(self, version: int, *, for_mariadb: bool) -> bool:
        """Whether it reads a comment that is for this version."""
        if self.is_mariadb and not for_mariadb and 50700 <= version <= 99999:
            return False
        return version <= self.version


SERVERS = (
    Server("MariaDB 10.11", 101119, is_mariadb=True),
    Server("MariaDB 11.8 with ANSI_QUOTES", 110801, is_mariadb=True, ansi_quotes=True),
    Server("MySQL 5.7", 50744),
    Server("MySQL 8.0.12", 80012),
    Server("MySQL 8.0.36", 80036),
    Server("MySQL 9.4", 90400, has_dollar_quotes=True),
)


class Unterminated(Exception):
    """A string, name or comment without an end."""


class Lexer:
    """One statement for one server."""

    def __init__(self, text: str, server: Server) -> None:
        self._text, self._server, self._at = text, server, 0

    def code(self) -> str:
        """The statement with a blank for each comment, string and name. Raises Unterminated."""
        found: list[str] = []
        in_comment = False
        while self._at < len(self._text):  # ends: each turn takes something
            rest = self._text[self._at :]
            if in_comment and rest.startswith("*/"):
                in_comment = False
                self._at += 2
            elif rest.startswith("/*"):
                in_comment = self._comment(rest) or in_comment
                found.append(" ")
            elif rest[0] == "#" or re.match(r"--(?:[\x00-\x20\x7f]|\Z)", rest):
                self._at = (self._text + "\n").find("\n", self._at)
            elif rest[0] in "'\"`":
                self._quoted(rest[0])
                found.append(" ")
            elif self._server.has_dollar_quotes and self._dollar(rest):
                found.append(" ")
            else:
                word = re.match(r"[\w$]+|.", rest, re.DOTALL)
                assert word is not None
                found.append(word.group())
                self._at += word.end()
        if in_comment:
            raise Unterminated("comment")
        return "".join(found)

    def _comment(self, rest: str) -> bool:
        """Steps into a comment that is code, or over one that is not."""
        opening = re.match(r"/\*(M?)!(\d{5,6})?", rest)
        is_for_mariadb = opening is not None and opening[1] == "M"
        if opening is None or (is_for_mariadb and not self._server.is_mariadb):
            self._at += 2
            self._step_over(nested=False)
            return False
        version = int(opening[2] or 0)
        if self._server.executes(version, for_mariadb=is_for_mariadb):
            self._at += opening.end()
            return True
        self._at += 3
        self._step_over(nested=True)
        return False

    def _step_over(self, *, nested: bool) -> None:
        while self._at < len(self._text):  # ends: each turn takes something
            if nested and self._text.startswith("/*", self._at):
                self._at += 2
                self._step_over(nested=False)
            elif self._text.startswith("*/", self._at):
                self._at += 2
                return
            else:
                self._at += 1
        raise Unterminated("comment")

    def _quoted(self, quote: str) -> None:
        has_escapes = quote == "'" or (quote == '"' and not self._server.ansi_quotes)
        self._at += 1
        while self._at < len(self._text):  # ends: each turn takes something
            char = self._text[self._at]
            if char == "\\" and has_escapes:
                self._at += 2
            elif char != quote:
                self._at += 1
            elif self._text.startswith(quote * 2, self._at):
                self._at += 2
            else:
                self._at += 1
                return
        raise Unterminated(quote)

    def _dollar(self, rest: str) -> bool:
        tag = re.match(r"\$\w*\$", rest)
        if tag is None:
            return False
        end = rest.find(tag[0], tag.end())
        if end < 0:
            raise Unterminated("$")
        self._at += end + len(tag[0])
        return True


def code(text: str, server: Server) -> str:
    """What a server executes of a statement. Raises Unterminated."""
    return Lexer(text, server).code()
