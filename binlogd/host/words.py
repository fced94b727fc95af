"""Words that the system gives as bytes: those of a command line, and values of variables."""

from __future__ import annotations


def is_utf8(word: str) -> bool:
    """Whether it was; of what was not, Python has surrogates, which no peer and no file takes."""
    return not any("\ud800" <= each <= "\udfff" for each in word)
