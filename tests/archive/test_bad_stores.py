"""Every operation on a store that refuses it, lies, dies or comes back: one clear error or a completed retry.

Whatever happens there, the local files are the ones that they were, and what was archived before is still one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attrs import frozen

from milepost.engines.archive.moving import copy, download
from milepost.engines.archive.publisher import publish
from milepost.engines.archive.reader import fetch
from milepost.engines.archive.releasing import prune_verified
from milepost.engines.buckets import Bucket
from milepost.engines.buckets.opening import open_bucket
from milepost.engines.buckets.probe import probe
from milepost.engines.buckets.remote import Destination, Remote
from milepost.engines.checkpoints.manifest import MANIFEST
from milepost.engines.disks.local import LocalDisk
from milepost.transitions.errors import Corrupt, MilepostError, Misconfigured, Refused, Unavailable
from milepost.transitions.values import Component
from tests.archive.published import AMBIENT, KEPT, NAME, Saved, on_disk, saved
from tests.buckets.answering import AnsweringServer, HangUp, Say, error
from tests.buckets.benches import Store
from tests.buckets.between import Between, Cut, Half
from tests.buckets.conftest import running
from tests.buckets.servers import KEY_ID, SECRET, SeaweedFS
from tests.log.slots import Writer, heads

pytestmark = pytest.mark.services

PART_BYTES = 5 << 20
LARGE = {"model.pt": bytes(range(256)) * (3 * PART_BYTES // 256), "data.pt": b"d"}
EVERY = frozenset(("publish", "fetch", "prune", "copy", "download", "probe", "append", "replay"))
WRITING = frozenset(("publish", "copy", "probe", "append"))
LISTING = frozenset(("copy", "download", "append", "replay"))
"""What a listing of objects is needed for. SeaweedFS lists uploads for whoever may write."""


@pytest.fixture(scope="module")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    with running(SeaweedFS, tmp_path_factory) as server:
        assert isinstance(server, SeaweedFS)
        yield server


def bucket_of(credentials: Path, *, name: str, prefix: str = "", patience_s: float = 30.0) -> Bucket:
    return open_bucket(
        name, prefix=prefix, credentials=credentials, ambient=AMBIENT, patience_s=patience_s, part_bytes=PART_BYTES
    )


def remote(bucket: Bucket, prefix: str) -> Remote:
    return Remote(bucket=bucket, destination=Destination(endpoint="store:1", bucket="b", prefix=prefix))


@frozen(kw_only=True)
class Ground:
    """A published checkpoint and an archived artifact on a disk, an archive and a journal in a store."""

    disk: LocalDisk
    checkpoint: Saved
    artifact: Saved
    prefix: str

    def local(self) -> dict[str, bytes]:
        return {
            f"{one.path}/{name}": data
            for one in (self.checkpoint, self.artifact)
            for name, data in on_disk(self.disk, one.path).items()
        }

    def run(self, verb: str, bucket: Bucket, journal: Bucket) -> None:
        """One operation; what went wrong is raised, the reason of a kept copy too."""
        archive, here = remote(bucket, f"{self.prefix}/checkpoints/{NAME}"), self.disk
        new = remote(bucket, f"{self.prefix}/new/checkpoints")
        if verb == "publish":
            publish(here, self.checkpoint.path, new, ambient=AMBIENT, promises=KEPT)
        elif verb == "fetch":
            fetch(archive, here, "fetched", ambient=AMBIENT)
        elif verb == "prune":
            done = prune_verified(
                here, self.artifact.path, opener=lambda at: remote(bucket, at.prefix), ambient=AMBIENT
            )
            if done.kept:
                raise Kept(done.kept)
        elif verb == "copy":
            copy(archive, new.at(f"{self.prefix}/copied"), ambient=AMBIENT, promises=KEPT)
        elif verb == "download":
            download(archive, here, "downloaded", ambient=AMBIENT)
        elif verb == "probe":
            probe(bucket, f"{self.prefix}/probed/", ambient=AMBIENT)
        elif verb == "append":
            Writer(journal, "second").open()
        else:
            assert verb == "replay"
            heads(journal)


class Kept(MilepostError):
    """The copy stays, for this reason."""


def ground_on(store: Store, root: Path, *, payload: dict[str, bytes] | None = None) -> Ground:
    disk, prefix = LocalDisk(root), root.name
    payload = payload or {"model.pt": b"weights" * 1000, "data.pt": b"d"}
    checkpoint = saved(disk, payload=payload)
    artifact = saved(disk, payload=payload, plan=(Component.MODEL,), above="checkpoint_artifacts")
    bucket = bucket_of(store.credentials(), name=store.bucket)
    for one in (checkpoint, artifact):
        publish(disk, one.path, remote(bucket, f"{prefix}/checkpoints"), ambient=AMBIENT, promises=KEPT)
    (root / checkpoint.path / ".uploaded").unlink()  # it is published once more, elsewhere
    Writer(bucket_of(store.credentials(), name=store.bucket, prefix=f"{prefix}/"), "first").open()
    return Ground(disk=disk, checkpoint=checkpoint, artifact=artifact, prefix=prefix)


def every_verb_is_refused(
    ground: Ground, credentials: Path, *, name: str, words: str, refused: frozenset[str]
) -> None:
    """The verbs `refused` say `words`, all others do their work; no secret is shown, no local file changes."""
    before = ground.local()
    bucket = bucket_of(credentials, name=name)
    journal = bucket_of(credentials, name=name, prefix=f"{ground.prefix}/")
    for verb in sorted(refused):
        with pytest.raises((Misconfigured, Kept)) as caught:
            ground.run(verb, bucket, journal)
        assert words in str(caught.value), verb
        assert not any(secret in str(caught.value) for secret in (KEY_ID, SECRET, "WRONGSECRET")), verb
        assert ground.local() == before, verb
    for verb in sorted(EVERY - refused):
        ground.run(verb, bucket, journal)
    for verb, target in (("fetch", "fetched"), ("download", "downloaded")):
        stat = ground.disk.stat(f"{target}/{MANIFEST}")
        assert (stat is None) == (verb in refused)


@pytest.mark.parametrize(
    ("other", "name", "words", "refused"),
    [
        ({"aws_secret_access_key": "WRONGSECRET"}, "", "the credentials are wrong", EVERY),
        ({"aws_access_key_id": "AKNOBODY"}, "", "the credentials are wrong", EVERY),
        ({}, "no-such-bucket", "there is no such bucket", EVERY),
        ({"aws_access_key_id": SeaweedFS.READER}, "", "s3:PutObject", WRITING),
        ({"aws_access_key_id": SeaweedFS.WRITER}, "", "s3:ListBucket", LISTING),
    ],
    ids=["secret", "key id", "bucket", "denied PUT", "denied LIST"],
)
def test_what_the_store_refuses_is_said_by_every_operation(
    seaweedfs: SeaweedFS, tmp_path: Path, other: dict[str, str], name: str, words: str, refused: frozenset[str]
) -> None:
    ground = ground_on(seaweedfs, tmp_path)
    credentials = seaweedfs.credentials("bad", **other)
    every_verb_is_refused(ground, credentials, name=name or seaweedfs.bucket, words=words, refused=refused)


OTHER_REGION = Say(
    status=400,
    body=b"<Error><Code>AuthorizationHeaderMalformed</Code><Message>the region is wrong; expecting 'eu-west-7'"
    b"</Message><Region>eu-west-7</Region></Error>",
)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (error(400, "ExpiredToken", message=f"{KEY_ID} {SECRET}"), "the session token has run out"),
        (OTHER_REGION, "set the credentials' region to it, eu-west-7"),
        (error(301, "PermanentRedirect", x_amz_bucket_region="eu-west-7"), "region to it, eu-west-7"),
    ],
    ids=["expired token", "signed for another region", "redirected to another region"],
)
def test_a_token_that_ran_out_and_another_region_are_said_by_every_operation(
    seaweedfs: SeaweedFS, tmp_path: Path, answer: Say, words: str
) -> None:
    ground = ground_on(seaweedfs, tmp_path)
    with Between(seaweedfs.port, lambda _method, _target: answer) as between:
        credentials = seaweedfs.credentials("between", endpoint_url=between.endpoint)
        every_verb_is_refused(ground, credentials, name=seaweedfs.bucket, words=words, refused=EVERY)


@pytest.mark.parametrize("verb", ["publish", "fetch", "copy", "download"])
def test_a_token_that_runs_out_half_way_leaves_what_another_call_completes(
    seaweedfs: SeaweedFS, tmp_path: Path, verb: str
) -> None:
    ground = ground_on(seaweedfs, tmp_path)
    before, asked, most = ground.local(), 0, 0

    def after_most(_method: str, _target: str) -> Say | None:
        nonlocal asked
        asked += 1
        return error(400, "ExpiredToken") if asked > most else None

    with Between(seaweedfs.port, after_most) as between:
        credentials = seaweedfs.credentials("between", endpoint_url=between.endpoint)
        for most in (1, 3, 5):  # noqa: B007 - the rule reads it
            asked = 0
            bucket = bucket_of(credentials, name=seaweedfs.bucket)
            with pytest.raises(Misconfigured, match="the session token has run out"):
                ground.run(verb, bucket, bucket)
            assert ground.local() == before
        most = 10_000
        ground.run(verb, bucket, bucket)
    done = {
        "publish": f"{ground.prefix}/new/checkpoints/{NAME}",
        "copy": f"{ground.prefix}/copied",
    }
    if verb in done:
        assert bucket_of(seaweedfs.credentials(), name=seaweedfs.bucket).stat(f"{done[verb]}/{MANIFEST}") is not None
    else:
        found = on_disk(ground.disk, "fetched" if verb == "fetch" else "downloaded")
        assert found.items() >= ground.checkpoint.files.items()


def test_a_token_that_runs_out_ends_a_writer_and_loses_nothing_that_was_acknowledged(
    seaweedfs: SeaweedFS, tmp_path: Path
) -> None:
    expired = False
    with Between(seaweedfs.port, lambda *_: error(400, "ExpiredToken") if expired else None) as between:
        credentials = seaweedfs.credentials("between", endpoint_url=between.endpoint)
        bucket = bucket_of(credentials, name=seaweedfs.bucket, prefix=f"{tmp_path.name}/")
        writer = Writer(bucket, "first")
        writer.open()
        writer.train(2)
        told = writer.acknowledge()
        expired = True
        writer.train(1)
        with pytest.raises(Misconfigured, match="the session token has run out"):
            writer.acknowledge()
        expired = False
        with pytest.raises(MilepostError, match="an earlier failure; this writer records nothing more"):
            writer.acknowledge()
        assert heads(bucket)[-1] == told
        Writer(bucket, "second").open()


@pytest.mark.parametrize("data", [b"short", None], ids=["truncated", "changed"])
def test_an_object_that_is_not_the_archived_one_is_found_by_every_reader(
    seaweedfs: SeaweedFS, tmp_path: Path, data: bytes | None
) -> None:
    ground = ground_on(seaweedfs, tmp_path)
    before = ground.local()
    bucket = bucket_of(seaweedfs.credentials(), name=seaweedfs.bucket)
    for above in ("checkpoints", "checkpoint_artifacts"):
        key = f"{ground.prefix}/{above}/{NAME}/model.pt"
        old = bucket.read(key, limit=1 << 20)[0]
        with bucket.upload(key, size_hint=0) as upload:
            upload.write(data if data is not None else bytes([old[0] ^ 1]) + old[1:])
            upload.commit()
    for verb in ("fetch", "copy", "download", "prune"):
        with pytest.raises((Corrupt, Kept), match=r"model\.pt .*expected .*found"):
            ground.run(verb, bucket, bucket)
        assert ground.local() == before
        assert ground.disk.stat("fetched") is None
        assert ground.disk.stat(f"downloaded/{MANIFEST}") is None
        assert bucket.stat(f"{ground.prefix}/copied/{MANIFEST}") is None
    home = remote(bucket, f"{ground.prefix}/checkpoints")
    with pytest.raises(Corrupt, match=r"model\.pt .*expected .*found"):
        publish(ground.disk, ground.checkpoint.path, home, ambient=AMBIENT, promises=KEPT)
    assert ground.local() == before


def test_an_answer_that_breaks_off_is_asked_for_again(seaweedfs: SeaweedFS, tmp_path: Path) -> None:
    ground = ground_on(seaweedfs, tmp_path)
    broken: set[str] = set()

    def each_once(method: str, target: str) -> Cut | HangUp | None:
        if f"{method} {target}" in broken:
            return None
        broken.add(f"{method} {target}")
        return Cut() if method == "GET" else HangUp()

    with Between(seaweedfs.port, each_once) as between:
        credentials = seaweedfs.credentials("between", endpoint_url=between.endpoint)
        bucket = bucket_of(credentials, name=seaweedfs.bucket)
        for verb in ("fetch", "copy", "download", "publish", "prune"):
            ground.run(verb, bucket, bucket)
    assert on_disk(ground.disk, "fetched") == ground.checkpoint.files
    assert len(broken) > 20


ODD = "a b+c%26&d=e;f~'\"(g)!*:@,$ ü 漢 🚩 #?[x]{y}<z>|^`"


def test_names_with_odd_characters_are_the_same_names_everywhere(seaweedfs: SeaweedFS, tmp_path: Path) -> None:
    disk = LocalDisk(tmp_path)
    checkpoint = saved(disk)
    bucket = bucket_of(seaweedfs.credentials(), name=seaweedfs.bucket)
    into = remote(bucket, f"{tmp_path.name}/{ODD}/checkpoints")
    publish(disk, checkpoint.path, into, ambient=AMBIENT, promises=KEPT)
    with bucket.upload(into.key(f"{ODD}/{ODD}"), size_hint=0) as upload:
        upload.write(b"odd")
        upload.commit()
    target = into.at(f"{tmp_path.name}/{ODD} copied")
    done = copy(into, target, ambient=AMBIENT, promises=KEPT)
    assert f"{ODD}/{ODD}" in done.moved
    assert copy(into, target, ambient=AMBIENT, promises=KEPT).moved == ()
    assert download(target, disk, "down", ambient=AMBIENT).moved == done.moved
    assert (tmp_path / "down" / ODD / ODD).read_bytes() == b"odd"
    fetch(target.below(NAME), disk, "back", ambient=AMBIENT)
    assert on_disk(disk, "back") == checkpoint.files


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a//b", "the segment '' is not a name"),
        ("../up", "the segment '..' is not a name"),
        ("a/./b", "the segment '.' is not a name"),
        ("back\\slash", "it holds"),
        ("bell%07", "it holds"),
        ("x" * 256, "a segment has 256 bytes"),
    ],
    ids=["empty", "up", "here", "backslash", "control", "long"],
)
def test_an_object_whose_name_no_disk_has_is_refused_and_nothing_is_moved(
    tmp_path: Path, name: str, words: str
) -> None:
    keys = "".join(f"<Contents><Key>p/{one}</Key></Contents>" for one in ("fine", name))
    listing = f"<ListBucketResult><EncodingType>url</EncodingType>{keys}</ListBucketResult>"
    with AnsweringServer(Say(body=listing.encode())) as server:
        credentials = SeaweedFS(tmp_path).credentials(endpoint_url=server.endpoint)  # never started
        source = remote(bucket_of(credentials, name="b", patience_s=0.1), "p")
        with pytest.raises(Refused, match="has no name that can be moved") as caught:
            download(source, LocalDisk(tmp_path), "down", ambient=AMBIENT)
        assert words in str(caught.value)
        assert server.methods() == ["GET"]
    assert not (tmp_path / "down").exists()


@pytest.mark.kills
class TestAServerThatDies:
    """SIGKILL in the middle of a part, or of the read of a range."""

    @pytest.mark.slow
    def test_and_comes_back_costs_time_only(self, tmp_path: Path) -> None:
        with running_alone(tmp_path) as server:
            ground = ground_on(server, tmp_path / "run", payload=LARGE)
            before = ground.local()
            starting: list[threading.Thread] = []

            def restart() -> None:
                server.kill()
                starting.append(threading.Thread(target=server.start))
                starting[-1].start()

            with Between(server.port, once(lambda _m, target: "partNumber=2" in target, restart)) as between:
                bucket = bucket_of(
                    server.credentials("between", endpoint_url=between.endpoint), name=server.bucket, patience_s=120
                )
                ground.run("publish", bucket, bucket)
                between.rule = once(lambda m, target: m == "GET" and "model.pt" in target, restart)
                ground.run("fetch", bucket, bucket)
            assert len(starting) == 2
            for thread in starting:
                thread.join()
            after = ground.local()
            assert after.pop(f"{ground.checkpoint.path}/.uploaded")
            assert after == before
            assert on_disk(ground.disk, "fetched") == ground.checkpoint.files

    @pytest.mark.slow
    def test_and_stays_away_is_one_error_and_the_next_call_completes(self, tmp_path: Path) -> None:
        with running_alone(tmp_path) as server:
            ground = ground_on(server, tmp_path / "run", payload=LARGE)
            before = ground.local()
            with Between(server.port, once(lambda _m, target: "partNumber=2" in target, server.kill)) as between:
                credentials = server.credentials("between", endpoint_url=between.endpoint)
                bucket = bucket_of(credentials, name=server.bucket, patience_s=1.0)
                with pytest.raises(Unavailable, match=r"the store does not answer; tried \d+ times"):
                    ground.run("publish", bucket, bucket)
                assert ground.local() == before
                server.start()
                ground.run("publish", bucket, bucket)
                ground.run("fetch", bucket, bucket)
            after = ground.local()
            assert after.pop(f"{ground.checkpoint.path}/.uploaded")
            assert after == before
            assert on_disk(ground.disk, "fetched") == ground.checkpoint.files
            assert bucket_of(server.credentials(), name=server.bucket).uploads("") == ()


def once(which: Callable[[str, str], bool], then: Callable[[], None]) -> Callable[[str, str], Half | None]:
    """The first such request is sent by half, and `then` happens; every other passes."""
    done = False

    def rule(method: str, target: str) -> Half | None:
        nonlocal done
        if done or not which(method, target):
            return None
        done = True
        return Half(then=then)

    return rule


def running_alone(folder: Path) -> SeaweedFS:
    """A server that a test may kill."""
    if reason := SeaweedFS.unavailable():
        pytest.skip(reason)
    for name in ("server", "run"):
        (folder / name).mkdir()
    return SeaweedFS(folder / "server")
