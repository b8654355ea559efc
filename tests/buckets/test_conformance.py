"""The conformance suite, on every store: in memory, on two servers of different makes, and on Google's rules."""

from __future__ import annotations

import itertools
from functools import cache

import pytest

from milepost.engines.buckets.clients import Clients, connect, read_credentials
from milepost.engines.buckets.probe import probe
from milepost.engines.simulated.bucket import PART_BYTES, SimulatedBucket
from milepost.transitions.errors import Misconfigured
from tests.buckets.benches import AMBIENT, Bench, Store, connected
from tests.buckets.conformance import Conformance

_PART_BYTES = 64 << 10
_LARGE_PART_BYTES = 5 << 20
"""The smallest part that Amazon allows; some stores insist on it."""

_NUMBERS = itertools.count()


@cache
def clients_of(store: Store) -> Clients:
    """Made once: that takes a third of a second."""
    return connect(read_credentials(store.credentials()))


def bench_on(store: Store, clients: Clients, *, part_bytes: int = _PART_BYTES) -> Bench:
    """A bench below a prefix of its own."""
    prefix = f"bench-{next(_NUMBERS)}/deep er/"
    one, other = (connected(clients, name=store.bucket, prefix=prefix, part_bytes=part_bytes) for _ in range(2))
    return Bench(bucket=one, other=other, part_bytes=part_bytes)


class TestSimulated(Conformance):
    @pytest.fixture
    def bench(self) -> Bench:
        simulated = SimulatedBucket()
        return Bench(bucket=simulated, other=simulated.process("other"), part_bytes=PART_BYTES)


@pytest.mark.services
class TestSeaweedFS(Conformance):
    @pytest.fixture
    def bench(self, seaweedfs: Store) -> Bench:
        return bench_on(seaweedfs, clients_of(seaweedfs), part_bytes=_LARGE_PART_BYTES)


@pytest.mark.services
class TestMinistack(Conformance):
    @pytest.fixture
    def bench(self, ministack: Store) -> Bench:
        return bench_on(ministack, clients_of(ministack))


@pytest.mark.services
class TestGoogle(Conformance):
    @pytest.fixture
    def bench(self, google: Store) -> Bench:
        return bench_on(google, clients_of(google))


@pytest.mark.services
def test_whatever_the_sdk_adds_google_gets_one_family_of_headers(google: Store) -> None:
    """The store refuses a request with both, and a signature that leaves one of them out."""
    client = clients_of(google).conditional
    client.put_object(
        Bucket=google.bucket,
        Key="headers",
        Body=b"x",
        IfNoneMatch="*",
        Metadata={"a": "b"},
        ChecksumAlgorithm="CRC32",
    )
    assert client.get_object(Bucket=google.bucket, Key="headers")["Body"].read() == b"x"


@pytest.mark.services
class TestStoresThatThePlainProbeRefuses:
    def test_a_store_that_ignores_conditions(self, rclone: Store) -> None:
        clients = connect(read_credentials(rclone.credentials()))
        promises = probe(bench_on(rclone, clients).bucket, "", ambient=AMBIENT)
        assert [name for name, tried in promises.items() if tried.kept] == []
        with pytest.raises(Misconfigured, match="does not keep racing creates") as caught:
            promises.require("s3://there")
        assert len(caught.value.problems) == 5

    def test_google_signed_as_aws_wants_it(self, google: Store) -> None:
        clients = connect(read_credentials(google.credentials("as-aws", provider="aws", checksum="when_required")))
        promises = probe(bench_on(google, clients).bucket, "", ambient=AMBIENT)
        assert [name for name, tried in promises.items() if tried.kept] == []
