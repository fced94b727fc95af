"""Until when certificates are valid: the first that ends, and the file as it is now."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

from binlogd.host.certificates import Expiry
from binlogd.host.tls import TlsFiles


def test_the_first_end_counts_and_a_renewed_certificate_at_once(tmp_path: Path) -> None:
    ca, cert, key = (tmp_path / name for name in ("ca.pem", "node.pem", "node.key"))
    issuer = trustme.CA()
    issuer.cert_pem.write_to_path(str(ca))
    ends = datetime.now(UTC).replace(microsecond=0) + timedelta(days=10)
    watched = Expiry([TlsFiles(ca, cert, key), None])
    assert list(watched.expires_s()) == [str(ca)], "what is not there is left out"

    def renew(until: datetime) -> None:
        made = issuer.issue_cert("node", not_after=until)
        fresh = tmp_path / "fresh"
        fresh.write_bytes(b"".join(each.bytes() for each in made.cert_chain_pems))
        os.replace(fresh, cert)

    renew(ends)
    assert watched.expires_s()[str(cert)] == ends.timestamp()
    renew(ends + timedelta(days=90))
    assert watched.expires_s()[str(cert)] == (ends + timedelta(days=90)).timestamp()
    cert.write_text("nothing")
    assert str(cert) not in watched.expires_s()
