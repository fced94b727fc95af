"""Where a lake lies, in the words of each library that goes there.

One URL says it all, as for exports and archives: pyarrow's, with options behind a `?`
(`s3://bucket/lake?endpoint_override=minio:9000&scheme=http&region=eu-1`). Without them each library
looks into the environment (`AWS_ACCESS_KEY_ID`, ...). Stores whose commits could not be tried with
a library are refused for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote

import msgspec
from pyarrow.fs import FileSystem, LocalFileSystem

from binlogd.errors import ConfigError
from binlogd.host.words import local_path, split_url
from binlogd.snapshot.publishing.file_systems import azure_options, file_system, without_secrets
from binlogd.snapshot.publishing.lake.version import url_of
from binlogd.snapshot.spec import LAKES, Lake

Kind = Lake
KINDS = LAKES
LIBRARIES = {"delta": "deltalake", "iceberg": "pyiceberg"}

_KNOWN = frozenset({"endpoint_override", "scheme", "region", "allow_bucket_creation"})
_TRIED = ("s3", "gs", "abfss")
_BY_PYARROW = "pyiceberg.io.pyarrow.PyArrowFileIO"
_BY_PYARROW_IN_AZURE = "binlogd.spark.lake.iceberg.AzureFileIO"
_FOR_EVER_MS = str(253402300799000)


@dataclass(frozen=True, slots=True)
class LakeLocation:
    """A lake. `url` is a directory of this machine, absolute, or pyarrow's URL with its options."""

    kind: Kind
    url: str

    @property
    def is_local(self) -> bool:
        """Whether it is a directory."""
        return "://" not in self.url

    @property
    def _scheme(self) -> str:
        return split_url(self.url).scheme

    @property
    def bare(self) -> str:
        """A URL without options and secrets."""
        return url_of(self.kind, Path(self.url)) if self.is_local else without_secrets(self.url)

    @property
    def shown(self) -> str:
        """What people may read."""
        return self.url if self.is_local else self.bare

    def table(self, directory: str) -> str:
        """The URL of a table; for a lake of this machine its path."""
        return f"{self.url if self.is_local else self.bare}/{directory}"

    def filesystem(self, directory: str) -> tuple[FileSystem, str]:
        """By pyarrow, with the path of a table."""
        if self.is_local:
            return LocalFileSystem(), f"{self.url}/{directory}"
        system, root = file_system(self.url)
        return system, f"{root.rstrip('/')}/{directory}"

    def delta_options(self) -> dict[str, str]:
        """For delta-rs. Source: object_store, its AmazonS3ConfigKey and so on."""
        if self._scheme == "gs":
            return self._google_options()
        if self._scheme == "abfss":
            azure = azure_options(self.url)
            account = ("account_name", "account_key")
            found = {f"AZURE_STORAGE_{name.upper()}": azure[name] for name in account}
            if end := azure.get("blob_storage_authority"):
                scheme = azure["blob_storage_scheme"]
                found["AZURE_STORAGE_ENDPOINT"] = f"{scheme}://{end}/{azure['account_name']}"
                found["AZURE_ALLOW_HTTP"] = str(scheme == "http").lower()
            return found
        names = {
            "key": "AWS_ACCESS_KEY_ID",
            "secret": "AWS_SECRET_ACCESS_KEY",
            "region": "AWS_REGION",
            "endpoint": "AWS_ENDPOINT_URL",
        }
        given = self._given()
        found = {names[name]: value for name, value in given.items()}
        if given.get("endpoint", "").startswith("http://"):
            found["AWS_ALLOW_HTTP"] = "true"
        return found

    def _google_options(self) -> dict[str, str]:
        """By object_store only a key says that there is none. Source: GoogleConfigKey."""
        end = self._given().get("endpoint")
        if end is None:
            return {}
        found = {"google_base_url": end, "allow_http": str(end.startswith("http:")).lower()}
        if self._is_anonymous:
            nobody = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
            key = msgspec.json.encode({"gcs_base_url": end, "disable_oauth": True, **nobody})
            found["google_service_account_key"] = key.decode()
        return found

    @property
    def _is_anonymous(self) -> bool:
        return split_url(self.url).username == "anonymous"

    def iceberg_properties(self) -> dict[str, str]:
        """For pyiceberg. Source: pyiceberg.io."""
        if self._scheme == "abfss":
            given = azure_options(self.url).items()
            adls = {f"adls.{name.replace('_', '-')}": value for name, value in given}
            return {"py-io-impl": _BY_PYARROW_IN_AZURE, **adls}
        if self._scheme == "gs":
            found = {"py-io-impl": _BY_PYARROW}
            if end := self._given().get("endpoint"):
                found["gcs.service.host"] = end
            if self._is_anonymous:  # pyiceberg knows nobody without a token
                found |= {"gcs.oauth2.token": "none", "gcs.oauth2.token-expires-at": _FOR_EVER_MS}
            return found
        names = {
            "key": "s3.access-key-id",
            "secret": "s3.secret-access-key",
            "region": "s3.region",
            "endpoint": "s3.endpoint",
        }
        return {names[name]: value for name, value in self._given().items()}

    def _given(self) -> dict[str, str]:
        parts = split_url(self.url)
        query = dict(parse_qsl(parts.query))
        found: dict[str, str] = {}
        if parts.username and parts.password:
            found |= {"key": unquote(parts.username), "secret": unquote(parts.password)}
        if "region" in query:
            found["region"] = query["region"]
        if "endpoint_override" in query:
            end = query["endpoint_override"]
            scheme = query.get("scheme", "https")
            found["endpoint"] = end if "://" in end else f"{scheme}://{end}"
        return found


def place_of(into: str) -> LakeLocation:
    """What `delta:…` or `iceberg:…` names. Raises ConfigError."""
    kind, _, url = into.partition(":")
    found = next((each for each in KINDS if each == kind), None)
    if found is None or not url:
        raise ConfigError(
            f"--into {into}: expected delta:PLACE or iceberg:PLACE (a directory, s3://...), or"
            " syncer for what [syncer] names"
        )
    if (path := local_path(url)) is not None:
        url_of(found, path.absolute())  # says so at once
        return LakeLocation(found, str(path.absolute()))
    parts = split_url(url)
    if parts.scheme not in _TRIED:
        raise ConfigError(f"--into {kind}:{parts.scheme}://...: {_refused(found, parts.scheme)}")
    if parts.scheme == "abfss":
        azure_options(url)
    unknown = sorted(dict(parse_qsl(parts.query)).keys() - _KNOWN)
    if unknown:
        raise ConfigError(
            f"--into {kind}:{parts.scheme}://...?{unknown[0]}=...: a lake takes"
            f" {', '.join(sorted(_KNOWN))}; all else comes from the environment (AWS_...)"
        )
    return LakeLocation(found, url.rstrip("/"))


def _refused(kind: Kind, scheme: str) -> str:
    if scheme in ("s3a", "s3n"):
        return "S3 is s3:// here"
    if scheme in ("abfs", "az", "azure", "wasb", "wasbs"):
        return "Azure is abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH here"
    tried = ", ".join(f"{each}://" for each in _TRIED)
    return f"a lake of {kind} lies in a directory, {tried}; its commits were never tried there"
