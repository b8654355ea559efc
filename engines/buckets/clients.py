"""Credentials, and the clients of boto3 that are made of them.

1. Credentials are a JSON file, named by its path, or what boto3 finds by itself (environment, profile, instance).
   The file's keys are `endpoint_url`, `region` (also `region_name`), `aws_access_key_id`, `aws_secret_access_key`,
   `aws_session_token`, `checksum` and `provider`; all may be left out, except that id and secret go together.
2. What is secret is read here, handed to boto3 and kept nowhere else; it is in no repr and no message.
3. `checksum` is botocore's mode for requests and responses: `when_supported` (the default) or `when_required`, for
   stores that refuse the checksums of newer SDKs. Google's endpoint is one of those.
4. The SDK repeats nothing: one call is one request, and the loops here know what each outcome allows. (`max_attempts`
   of botocore counts retries and `total_max_attempts` requests.) Nor does it go to another region by itself: that
   takes requests of its own, without end where a store does not name the region.
5. Google's endpoint gets a second client for requests under a condition, which signs in Google's way (`goog4.py`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import boto3  # type: ignore[import-untyped]
from attrs import field, frozen
from botocore.config import Config  # type: ignore[import-untyped]
from botocore.exceptions import BotoCoreError  # type: ignore[import-untyped]

from milepost.engines.buckets import goog4
from milepost.transitions.errors import Misconfigured

Provider = Literal["aws", "google"]
"""Whose rules a store follows: those of Amazon S3, as most do, or those of Google Cloud Storage."""

CONNECT_TIMEOUT_S = 10
READ_TIMEOUT_S = 60
_CONNECTIONS = 32
_FILE_BYTES = 64 << 10
_GOOGLE_HOST = "storage.googleapis.com"
_CHECKSUMS = ("when_supported", "when_required")
_PROVIDERS = ("aws", "google")


@frozen(kw_only=True)
class Credentials:
    """What a credentials file says. An empty string is something that it leaves to boto3."""

    endpoint_url: str = ""
    region: str = ""
    access_key_id: str = field(default="", repr=False)
    secret_access_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    checksum: str = ""
    provider: str = ""


_FIELDS = {
    "endpoint_url": "endpoint_url",
    "region": "region",
    "region_name": "region",
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
    "checksum": "checksum",
    "provider": "provider",
}


def read_credentials(path: Path) -> Credentials:
    """The credentials in a JSON file. `Misconfigured` names what is wrong with it, by key, never by value."""
    try:
        with path.open("rb") as file:
            raw = file.read(_FILE_BYTES + 1)
        found = json.loads(raw) if len(raw) <= _FILE_BYTES else None
    except OSError as error:
        raise Misconfigured((f"credentials {path}: {error.strerror}: give the path of a JSON file",)) from None
    except ValueError:
        raise Misconfigured(
            (f"credentials {path}: not JSON: expected an object with {', '.join(_FIELDS)}",)
        ) from None
    if not isinstance(found, dict):
        raise Misconfigured((f"credentials {path}: expected one small JSON object with {', '.join(_FIELDS)}",))
    problems = [
        f"credentials {path}: unknown key {key!r}: expected {', '.join(_FIELDS)}" for key in found.keys() - _FIELDS
    ]
    problems += [
        f"credentials {path}: {key!r} is not a string" for key, value in found.items() if not isinstance(value, str)
    ]
    if problems:
        raise Misconfigured(tuple(problems))
    credentials = Credentials(**{_FIELDS[key]: value for key, value in found.items() if value})
    if problems := _problems(credentials, found):
        raise Misconfigured(tuple(f"credentials {path}: {problem}" for problem in problems))
    return credentials


def _problems(credentials: Credentials, found: dict[str, str]) -> list[str]:
    problems = []
    if bool(credentials.access_key_id) != bool(credentials.secret_access_key):
        problems.append("aws_access_key_id and aws_secret_access_key go together: give both or neither")
    if credentials.session_token and not credentials.access_key_id:
        problems.append("aws_session_token without a key id and a secret: give all three")
    if len({found[key] for key in ("region", "region_name") if found.get(key)}) > 1:
        problems.append("region and region_name differ: give one of them")
    if credentials.checksum not in ("", *_CHECKSUMS):
        problems.append(f"checksum is none of {', '.join(_CHECKSUMS)}")
    if credentials.provider not in ("", *_PROVIDERS):
        problems.append(f"provider is none of {', '.join(_PROVIDERS)}")
    if credentials.endpoint_url:
        try:
            parts = urlsplit(credentials.endpoint_url)
            plain = (
                parts.scheme in ("http", "https") and parts.hostname and "@" not in parts.netloc and not parts.query
            )
        except ValueError:
            plain = False
        if not plain:
            problems.append("endpoint_url is not http(s)://host[:port], without a user, a password or a query")
    return problems


@frozen(kw_only=True)
class Clients:
    """`plain` for most requests, `conditional` for those under a condition; they may be the same one."""

    plain: Any
    conditional: Any
    provider: Provider
    checksum: str
    """Whether parts carry a CRC32: `when_supported` or `when_required`."""
    endpoint: str
    """Host and port, for messages."""


def connect(credentials: Credentials | None) -> Clients:
    """Clients for one store; nothing is sent yet. `Misconfigured` where boto3 cannot make one."""
    given = credentials or Credentials()
    try:
        return _connect(given)
    except (BotoCoreError, ValueError) as error:
        name = type(error).__name__
        raise Misconfigured(
            (f"no client for an object store can be made: {name}: check profile, region, endpoint",)
        ) from None


def _connect(given: Credentials) -> Clients:
    session = boto3.session.Session(
        aws_access_key_id=given.access_key_id or None,
        aws_secret_access_key=given.secret_access_key or None,
        aws_session_token=given.session_token or None,
        region_name=given.region or None,
    )
    plain = _client(session, given, checksum=given.checksum or "when_supported")
    host = urlsplit(plain.meta.endpoint_url).hostname or ""
    google = given.provider == "google" or (not given.provider and _is_google(host))
    checksum = given.checksum or ("when_required" if google else "when_supported")
    conditional = plain
    if google:
        goog4.install()
        plain = _client(session, given, checksum=checksum)
        conditional = _client(session, given, checksum="when_required", signature_version=goog4.SIGNATURE_VERSION)
        conditional.meta.events.register_last("before-send.s3", goog4.strip_sdk_headers)
    return Clients(
        plain=plain,
        conditional=conditional,
        provider="google" if google else "aws",
        checksum=checksum,
        endpoint=urlsplit(plain.meta.endpoint_url).netloc,
    )


def _is_google(host: str) -> bool:
    return host == _GOOGLE_HOST or host.endswith(f".{_GOOGLE_HOST}")


def _client(session: Any, given: Credentials, *, checksum: str, signature_version: str = "s3v4") -> Any:
    client = session.client(
        "s3",
        endpoint_url=given.endpoint_url or None,
        region_name=session.region_name or ("auto" if given.endpoint_url else None),
        config=Config(
            signature_version=signature_version,
            retries={"total_max_attempts": 1},
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=READ_TIMEOUT_S,
            max_pool_connections=_CONNECTIONS,
            request_checksum_calculation=checksum,
            response_checksum_validation=checksum,
            tcp_keepalive=True,
            # A store of one's own has no name for each bucket.
            s3={"addressing_style": "path" if given.endpoint_url else "auto"},
        ),
    )
    client.meta.events.register_last("before-parameter-build.s3", _stay_in_the_region)
    return client


def _stay_in_the_region(context: dict[str, Any], **_event: Any) -> None:
    """botocore goes to another region once for each call; say that it has."""
    context.setdefault("s3_redirect", {})["redirected"] = True
