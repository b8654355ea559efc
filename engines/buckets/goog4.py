"""GOOG4-HMAC-SHA256: how a conditional request to Google's S3-compatible endpoint is signed.

1. Google ignores `If-None-Match` and `If-Match` on writes that are signed as AWS wants it. It keeps
   `x-goog-if-generation-match`, which must not stand beside any `x-amz-*` header, and that takes Google's signature.
2. The algorithm is that of AWS with other names: a key that starts with GOOG4, a scope that ends in goog4_request,
   `x-goog-date`, `x-goog-content-sha256`. The functions here take the names as a `Scheme`, so that AWS's documented
   example checks what both share.
3. The signer says conditions the way Google understands them: `If-None-Match: *` becomes generation 0, `If-Match`
   the generation that it names. Metadata becomes `x-goog-meta-*`. Any other header of AWS or of its SDK is dropped:
   none of them changes what these requests mean.

Source: Google Cloud Storage, "V4 signing process with your own program", "HMAC keys", "Request preconditions";
AWS, "Create a signed AWS API request".
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from attrs import frozen
from botocore.auth import AUTH_TYPE_MAPS, S3SigV4Auth  # type: ignore[import-untyped]

from milepost.transitions.errors import Misconfigured

SIGNATURE_VERSION = "milepost-goog4"
"""The name under which botocore finds the signer."""


@frozen(kw_only=True)
class Scheme:
    """What a signature of this family calls itself."""

    algorithm: str
    key_prefix: str
    terminator: str


AWS4 = Scheme(algorithm="AWS4-HMAC-SHA256", key_prefix="AWS4", terminator="aws4_request")
GOOG4 = Scheme(algorithm="GOOG4-HMAC-SHA256", key_prefix="GOOG4", terminator="goog4_request")


@frozen(kw_only=True)
class Scope:
    """For what a signature holds: `timestamp` (`YYYYMMDDTHHMMSSZ`, only its day counts), region and service."""

    timestamp: str
    region: str
    service: str

    def credential(self, scheme: Scheme) -> str:
        return "/".join((self.timestamp[:8], self.region, self.service, scheme.terminator))


def canonical_request(*, method: str, path: str, query: str, headers: Mapping[str, str], payload: str) -> str:
    """The request as both sides write it down. `path` and `query` are percent-encoded already, the query sorted."""
    named = {name.lower(): " ".join(value.split()) for name, value in headers.items()}
    lines = [f"{name}:{named[name]}" for name in sorted(named)]
    return "\n".join((method.upper(), path, query, *lines, "", signed_headers(headers), payload))


def signed_headers(headers: Mapping[str, str]) -> str:
    return ";".join(sorted(name.lower() for name in headers))


def signature(canonical: str, *, scheme: Scheme, scope: Scope, secret: str) -> str:
    """The hex signature of a canonical request."""
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = "\n".join((scheme.algorithm, scope.timestamp, scope.credential(scheme), digest))
    key = f"{scheme.key_prefix}{secret}".encode()
    for step in (scope.timestamp[:8], scope.region, scope.service, scheme.terminator):
        key = hmac.digest(key, step.encode(), "sha256")
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


class GoogleSigner(S3SigV4Auth):  # type: ignore[misc]
    """Signs botocore's requests in Google's way; see the rules above."""

    def __init__(self, credentials: Any, service_name: str, region_name: str | None) -> None:
        super().__init__(credentials, "storage", region_name or "auto")

    def _modify_request_before_signing(self, request: Any) -> None:
        if self.credentials.token:
            raise Misconfigured(("Google's HMAC keys know no session token: leave aws_session_token out",))
        headers = request.headers
        for name, value in list(headers.items()):
            lower = name.lower()
            said = _in_googles_words(lower, value)
            if said is not None or lower in ("authorization", "date") or lower.startswith(("x-amz-", "amz-sdk-")):
                del headers[name]
            if said is not None:
                headers[said[0]] = said[1]
        for name in ("x-goog-date", "x-goog-content-sha256"):
            del headers[name]  # of an earlier attempt; harmless where there is none
        headers["x-goog-date"] = request.context["timestamp"]
        headers["x-goog-content-sha256"] = self.payload(request)

    def canonical_request(self, request: Any) -> str:
        return canonical_request(
            method=request.method,
            path=self._normalize_url_path(urlsplit(request.url).path),
            query=self.canonical_query_string(request),
            headers=dict(self.headers_to_sign(request).items()),
            payload=request.headers["x-goog-content-sha256"],
        )

    def string_to_sign(self, request: Any, canonical_request: str) -> str:
        return canonical_request  # `signature` below makes the whole of it

    def signature(self, string_to_sign: str, request: Any) -> str:
        return signature(string_to_sign, scheme=GOOG4, scope=self._scope(request), secret=self.credentials.secret_key)

    def _inject_signature_to_request(self, request: Any, signature: str) -> Any:
        credential = f"{self.credentials.access_key}/{self._scope(request).credential(GOOG4)}"
        signed = signed_headers(self.headers_to_sign(request))
        request.headers["Authorization"] = (
            f"{GOOG4.algorithm} Credential={credential}, SignedHeaders={signed}, Signature={signature}"
        )
        return request

    def _scope(self, request: Any) -> Scope:
        return Scope(timestamp=request.context["timestamp"], region=self._region_name, service=self._service_name)


def _in_googles_words(name: str, value: str) -> tuple[str, str] | None:
    """A header of AWS as Google says it; None for one that has no counterpart."""
    if name == "if-none-match" and value == "*":
        return "x-goog-if-generation-match", "0"
    if name == "if-match":
        return "x-goog-if-generation-match", value
    if name.startswith("x-amz-meta-"):
        return f"x-goog-meta-{name.removeprefix('x-amz-meta-')}", value
    return None


def install() -> None:
    """Make the signer known to botocore, under a name of its own; nobody else's requests change."""
    AUTH_TYPE_MAPS[SIGNATURE_VERSION] = GoogleSigner


def strip_sdk_headers(request: Any, **_event: Any) -> None:
    """The last word before a request is sent: botocore adds `amz-sdk-*` after the signature."""
    for name in [name for name in request.headers if name.lower().startswith("amz-sdk-")]:
        del request.headers[name]
