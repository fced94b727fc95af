"""How InnoDB calls tables: `a-b` in `s`, its partition x, as `s/a@002db#P#x`; MySQL has `#p#`.

MariaDB converts to this character set (`filename`) on demand, MySQL does not. Letters of some
alphabets have codes of two signs; here any such code stands for any of these letters, and where two
tables fit a name, none is told.

Source: MariaDB's and MySQL's strings/ctype-utf8, my_wc_mb_filename.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_PLAIN = re.compile(r"[0-9A-Za-z_]")
_SHORT_CODES = (
    (0xC0, 0x5FF),
    (0x1E00, 0x1FFF),
    (0x2160, 0x217F),
    (0x24B0, 0x24EF),
    (0xFF20, 0xFF5F),
)
"""Where letters may have a code of two letters."""


def like(database: str, table: str) -> str:
    """A pattern for LIKE that finds the table, its partitions, and more."""
    parts = (
        "".join(char if _PLAIN.fullmatch(char) else "@%" for char in name)
        for name in (database, table)
    )
    return ("/".join(parts) + "%").replace("_", "\\_")


def of_table(
    found: Sequence[tuple[str, int]], database: str, table: str, partition: str
) -> list[tuple[str, int]]:
    """Those of the table, or of one partition of it; none where that may be another's."""
    name = f"({_pattern(database)}/{_pattern(table)})"
    behind = f"#P#{_pattern(partition)}" if partition else "(?:#P#.*)?"
    whole, of_case = re.compile(name + behind, re.IGNORECASE), re.compile(name)
    fitting = [(match[1], each) for each in found if (match := whole.fullmatch(each[0]))]
    same_case = [each for each in fitting if of_case.fullmatch(each[0])]
    fitting = same_case or fitting  # names may stand there in lower case (lower_case_table_names)
    return [each for _, each in fitting] if len({name for name, _ in fitting}) == 1 else []


def _pattern(name: str) -> str:
    return "".join(map(_pattern_of, name))


def _pattern_of(char: str) -> str:
    if _PLAIN.fullmatch(char):
        return char
    code = f"@{ord(char):04x}"
    is_short = any(first <= ord(char) <= last for first, last in _SHORT_CODES)
    return f"(?:{code}|@..)" if is_short else code
