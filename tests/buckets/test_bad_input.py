"""Bad input and bad luck against real servers: each a clear error, or a retry that completes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from milepost.engines.buckets import Bucket, Committed
from milepost.engines.buckets.clients import Clients, connect, read_credentials
from milepost.engines.buckets.object import ObjectBucket
from milepost.engines.buckets.probe import probe
from milepost.transitions.errors import Misconfigured, Unavailable
from tests.buckets.benches import AMBIENT, Store, connected, get, put
from tests.buckets.servers import SeaweedFS, Server

pytestmark = pytest.mark.services

_PART_BYTES = 5 << 20
_SOON_S = 20.0


def clients_of(store: Store, name: str, **other: str) -> Clients:
    return connect(read_credentials(store.credentials(name, **other)))


def bucket_on(
    store: Store, clients: Clients, *, name: str = "", prefix: str = "bad/", lanes: int = 2
) -> ObjectBucket:
    return connected(clients, name=name or store.bucket, prefix=prefix, part_bytes=_PART_BYTES, lanes=lanes)


@pytest.mark.parametrize("other", [{"aws_secret_access_key": "wrong"}, {"aws_access_key_id": "AKNOBODY"}])
def test_wrong_credentials_are_said_to_be_wrong(seaweedfs: Store, other: dict[str, str]) -> None:
    bucket = bucket_on(seaweedfs, clients_of(seaweedfs, "wrong", **other))
    for verb in every_verb(bucket):
        with pytest.raises(Misconfigured, match="the credentials are wrong"):
            verb()


def test_a_missing_bucket_is_said_to_be_missing(seaweedfs: Store) -> None:
    bucket = bucket_on(seaweedfs, clients_of(seaweedfs, "right"), name="no-such-bucket")
    for verb in every_verb(bucket):
        with pytest.raises(Misconfigured, match="no such bucket"):
            verb()


def every_verb(bucket: Bucket) -> Iterator[Any]:
    yield lambda: bucket.stat("k")
    yield lambda: bucket.create("k", b"x", deadline_s=_SOON_S)
    yield lambda: bucket.read("k", limit=1)
    yield lambda: bucket.keys("")
    yield lambda: put(bucket, "k", b"x")
    yield lambda: put(bucket, "k", bytes(_PART_BYTES + 1))
    yield lambda: probe(bucket, "", ambient=AMBIENT)


def test_who_may_not_write_is_told_so_and_may_read(seaweedfs: Store) -> None:
    put(bucket_on(seaweedfs, clients_of(seaweedfs, "right"), prefix="denied/"), "k", b"x")
    reader = bucket_on(
        seaweedfs, clients_of(seaweedfs, "reader", aws_access_key_id=SeaweedFS.READER), prefix="denied/"
    )
    assert get(reader, "k") == b"x"
    for verb in (
        lambda: reader.create("new", b"x", deadline_s=_SOON_S),
        lambda: put(reader, "new", b"x"),
        lambda: put(reader, "new", bytes(_PART_BYTES + 1)),
        lambda: reader.delete("k"),
    ):
        with pytest.raises(Misconfigured, match="s3:PutObject"):
            verb()


def test_who_may_not_list_is_told_so(seaweedfs: Store) -> None:
    writer = bucket_on(seaweedfs, clients_of(seaweedfs, "writer", aws_access_key_id=SeaweedFS.WRITER))
    assert isinstance(writer.create("no-list", b"x", deadline_s=_SOON_S), Committed)
    with pytest.raises(Misconfigured, match="s3:ListBucket"):
        writer.keys("")


def test_a_server_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    server = SeaweedFS(tmp_path)  # never started
    bucket = connected(clients_of(server, "x"), name="b", prefix="", part_bytes=_PART_BYTES, patience_s=0.2)
    with pytest.raises(Unavailable, match=r"does not answer; tried \d+ times"):
        bucket.stat("k")


class Blow:
    """Kills the server when half of the given part is out, and starts it again at once."""

    def __init__(self, server: Server, *, part: int) -> None:
        self._server = server
        self._part = f"partNumber={part}&"
        self.fallen = 0
        self.starting: threading.Thread | None = None

    def __call__(self, request: Any, **_event: Any) -> None:
        if self._part in f"{request.url}&" and not self.fallen:
            self.fallen = 1
            request.body = self._half(bytes(request.body))

    def _half(self, body: bytes) -> Iterator[bytes]:
        yield body[: len(body) // 2]
        self._server.kill()
        self.starting = threading.Thread(target=self._server.start)
        self.starting.start()
        yield body[len(body) // 2 :]


@pytest.mark.parametrize("lanes", [0, 2])
def test_a_server_that_dies_in_the_middle_of_a_part_and_comes_back_costs_time_only(
    tmp_path: Path, lanes: int
) -> None:
    if reason := SeaweedFS.unavailable():
        pytest.skip(reason)
    with SeaweedFS(tmp_path) as server:
        clients = clients_of(server, "right")
        bucket = bucket_on(server, clients, lanes=lanes)
        blow = Blow(server, part=2)
        clients.plain.meta.events.register("before-send.s3.UploadPart", blow)
        data = bytes(range(256)) * (4 * _PART_BYTES // 256)
        with bucket.upload("k", size_hint=len(data), digest="sha256") as upload:
            upload.write(data)
            version = upload.commit()
        assert blow.fallen == 1
        assert blow.starting is not None
        blow.starting.join()
        assert bucket.read("k", limit=len(data)) == (data, version)
        assert bucket.uploads("") == ()


@pytest.mark.slow
def test_ten_thousand_keys_are_listed_in_pages(seaweedfs: Store) -> None:
    clients = clients_of(seaweedfs, "right")
    bucket = bucket_on(seaweedfs, clients, prefix="many/")
    slots = [f"journal/{number:020}.json" for number in range(10_000)]
    with ThreadPoolExecutor(8) as pool:
        for answer in pool.map(lambda key: bucket.create(key, b"x", deadline_s=60), slots):
            assert isinstance(answer, Committed)
    assert bucket.keys("journal/", limit=20_000) == tuple(slots)
    assert bucket.keys("journal/", after=slots[4_999], limit=2_500) == tuple(slots[5_000:7_500])
