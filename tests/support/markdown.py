"""A table of Markdown, as the pages have it that tests make."""

from __future__ import annotations

from collections.abc import Iterable


def table(head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    """With a line for each row, of as many cells as the head has."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
