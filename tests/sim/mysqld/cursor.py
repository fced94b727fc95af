"""The tokens of a statement, one after the other: what both grammars are written with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from tests.sim.mysqld.lexing import NotSimulated, Token

T = TypeVar("T")
_END = Token("end", "")


class Cursor:
    """Where a parser stands. `args` counts the literals that were passed."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens, self._at = tokens, 0
        self.args = 0

    @property
    def now(self) -> Token:
        """The next token."""
        return self._tokens[self._at] if self._at < len(self._tokens) else _END

    def says(self, *words: str) -> bool:
        """Whether these words or signs come next, without taking them."""
        following = self._tokens[self._at : self._at + len(words)]
        return len(following) == len(words) and all(
            token.kind != "name" and token.text.upper() == word
            for token, word in zip(following, words, strict=True)
        )

    def takes(self, *words: str) -> bool:
        """Takes these words or signs if they come next."""
        if not self.says(*words):
            return False
        self._at += len(words)
        return True

    def must(self, *words: str) -> None:
        """Takes them. Raises NotSimulated if something else comes."""
        if not self.takes(*words):
            raise self.unknown(" ".join(words))

    def identifier(self) -> str:
        """A name, in back-ticks or not."""
        token = self.now
        if token.kind not in ("name", "word") or token.text.startswith("@"):
            raise self.unknown("a name")
        self._at += 1
        return token.text

    def word(self) -> str:
        """A word, in upper case."""
        token = self.now
        if token.kind != "word":
            raise self.unknown("a word")
        self._at += 1
        return token.text.upper()

    def arg(self) -> int:
        """A literal: its number."""
        self.must("?")
        self.args += 1
        return self.args - 1

    def qualified(self) -> tuple[str, str]:
        """`database`.`table`, or a table alone: then the database is ""."""
        first = self.identifier()
        return (first, self.identifier()) if self.takes(".") else ("", first)

    def listed(self, item: Callable[[], T]) -> list[T]:
        """One or several, with commas between them."""
        found = [item()]
        while self.takes(","):
            found.append(item())
        return found

    def end(self) -> None:
        """Raises NotSimulated if anything is left."""
        if self.now.kind != "end":
            raise self.unknown("the end")

    def unknown(self, wanted: str) -> NotSimulated:
        """The error of a statement that is not known."""
        text = " ".join(token.text for token in self._tokens)
        rest = " ".join(token.text for token in self._tokens[self._at :])
        return NotSimulated(f"{wanted} was expected before {rest[:80]!r} in {text[:400]!r}")
