"""Whatever boto3 raises, as a `Setback`: what was asked of which address, what came back, what to do.

1. The kind follows from the HTTP status, and for some statuses from the error's code (`wire.py`).
2. Only the status, the code and the region of an answer are repeated, as plain words. A store's own message may
   quote keys, tokens and signatures; it is dropped, and so is the chain of exceptions that holds it.

Source: Amazon S3 API reference, "Error responses"; botocore.exceptions.
"""

from __future__ import annotations

import errno
import re
from typing import Any

from botocore import exceptions as sdk  # type: ignore[import-untyped]
from urllib3.exceptions import HTTPError

from milepost.engines.buckets.wire import Setback, kind_of
from milepost.transitions.errors import Corrupt, MilepostError, Misconfigured, Unavailable

_CREDENTIALS = "the credentials are wrong: check the key id, the secret and the endpoint that they belong to"
_EXPIRED = "the session token has run out or is not one: get new credentials"
_REGION = "the bucket is in another region: set the credentials' region to it"
_CLOCK = "this machine's clock and the store's differ too much: set the clock"
_BUCKET = "there is no such bucket: check its name and the endpoint, or create it"
_DENIED = (
    "these credentials may not do that: they need s3:GetObject, s3:PutObject, s3:DeleteObject, s3:ListBucket "
    "(without it a missing object looks like a forbidden one), s3:AbortMultipartUpload and "
    "s3:ListBucketMultipartUploads"
)
_NOT_OFFERED = "the store does not offer that request: use one that does"

_ADVICE = {
    "InvalidAccessKeyId": _CREDENTIALS,
    "SignatureDoesNotMatch": _CREDENTIALS,
    "InvalidSecurity": _CREDENTIALS,
    "ExpiredToken": _EXPIRED,
    "InvalidToken": _EXPIRED,
    "TokenRefreshRequired": _EXPIRED,
    "RequestTimeTooSkewed": _CLOCK,
    "NoSuchBucket": _BUCKET,
    "PermanentRedirect": _REGION,
    "TemporaryRedirect": _REGION,
    "AuthorizationHeaderMalformed": _REGION,
    "IllegalLocationConstraintException": _REGION,
    "NotImplemented": _NOT_OFFERED,
}
_ADVICE_BY_STATUS = {
    301: _REGION,
    307: _REGION,
    401: _CREDENTIALS,
    403: _DENIED,
    405: _NOT_OFFERED,
    501: _NOT_OFFERED,
}

_SETTINGS = (
    sdk.NoCredentialsError,
    sdk.PartialCredentialsError,
    sdk.CredentialRetrievalError,
    sdk.NoRegionError,
    sdk.InvalidRegionError,
    sdk.ParamValidationError,
    sdk.UnknownSignatureVersionError,
)


def setback_of(error: Exception, *, doing: str, where: str) -> Setback:
    """`error` of a request `doing` about the address `where`. An error that is no failure of a store is raised."""
    if isinstance(error, Setback):
        return error
    if isinstance(error, sdk.ClientError):
        return _answered(error.response, doing=doing, where=where)
    name = type(error).__name__
    said = f"{where}: {doing} failed: {name}"
    if isinstance(error, sdk.FlexibleChecksumError):
        wrong = Corrupt(f"{said}: the bytes that arrived differ from the checksum that the store keeps of them")
        return Setback("final", why=name, error=wrong)
    if isinstance(error, _SETTINGS):
        advice = "give credentials as a JSON file, or in one of the places where boto3 looks for them"
        return Setback("final", why=name, error=Misconfigured((f"{said}: {advice}",)))
    if isinstance(error, (sdk.BotoCoreError, sdk.HTTPClientError, HTTPError, OSError)):
        return Setback("passing", why=name, error=Unavailable(f"{said}: the store does not answer"))
    raise error


def _answered(response: dict[str, Any], *, doing: str, where: str) -> Setback:
    meta = response.get("ResponseMetadata", {})
    status = int(meta.get("HTTPStatusCode", 0))
    code = re.sub(r"[^A-Za-z0-9.]", "", str(response.get("Error", {}).get("Code", "")))[:64]
    why = f"{status} {code}" if code and code != str(status) else str(status)
    said = f"{where}: {doing} was answered with {why}"
    kind = kind_of(status, code)
    if kind == "absent":
        return Setback(kind, why=why, error=FileNotFoundError(errno.ENOENT, "no such object", where))
    if kind == "passing":
        return Setback(kind, why=why, error=Unavailable(said))
    advice = _ADVICE.get(code) or _ADVICE_BY_STATUS.get(status)
    region = _region(meta, response.get("Error", {}))
    if region and (advice is _REGION or (advice is None and status == 400)):  # HEAD has no code
        advice = f"{_REGION}, {region}"
    error: MilepostError = Misconfigured((f"{said}: {advice}",)) if advice else Unavailable(said)
    return Setback(kind, why=why, error=error)


def _region(meta: dict[str, Any], error: dict[str, Any]) -> str:
    """The bucket's region where the answer names it: in a header, or in the body (a signature for another one)."""
    named = meta.get("HTTPHeaders", {}).get("x-amz-bucket-region") or error.get("Region") or ""
    return named if re.fullmatch(r"[a-z]{2,}(-[a-z0-9]{1,12}){1,4}", named) else ""
