"""Until when certificates are valid, out of their files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path

from binlogd.host.tls import TlsFiles


class Expiry:
    """Looks at files again when they have changed: a renewed certificate counts at once."""

    def __init__(self, used: Iterable[TlsFiles | None]) -> None:
        named = [path for files in used if files for path in (files.ca, files.cert)]
        self._paths = sorted({path for path in named if path is not None})
        if self._paths:  # at the start, and not at the first question
            import_module("cryptography.x509")
        self._known: dict[Path, tuple[tuple[int, int], float]] = {}

    def expires_s(self) -> Mapping[str, float]:
        """By file, when the first of its certificates ends, in seconds since 1970; without those
        that cannot be read, of which a handshake tells."""
        ends = {str(path): self._end_s(path) for path in self._paths}
        return {path: end_s for path, end_s in ends.items() if end_s is not None}

    def _end_s(self, path: Path) -> float | None:
        try:
            stat = path.stat()
            stamp = stat.st_ino, stat.st_mtime_ns
            known = self._known.get(path)
            if known is None or known[0] != stamp:
                known = self._known[path] = stamp, _first_end_s(path)
        except (OSError, ValueError):
            return None
        return known[1]


def _first_end_s(path: Path) -> float:
    """Raises OSError, ValueError."""
    from cryptography import x509

    held = x509.load_pem_x509_certificates(path.read_bytes())
    return min(each.not_valid_after_utc.timestamp() for each in held)
