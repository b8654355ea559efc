"""The commands on a bad store, and where a credential must never be: output, logs, files, objects, process lists."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from milepost.engines.archive.moving import copy, download
from milepost.engines.disks.local import LocalDisk
from milepost.engines.simulated.bucket import SimulatedBucket
from milepost.journal.cli import main
from tests.archive.published import AMBIENT, KEPT, NAME
from tests.archive.test_bad_stores import EVERY, OTHER_REGION, bucket_of, ground_on, remote, seaweedfs  # noqa: F401
from tests.buckets.answering import Say, error
from tests.buckets.between import Between
from tests.buckets.servers import KEY_ID, SECRET, SeaweedFS


@pytest.mark.services
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (error(400, "ExpiredToken", message=f"{KEY_ID} {SECRET}"), "the session token has run out"),
        (OTHER_REGION, "eu-west-7"),
        (error(403, "AccessDenied", message=SECRET), "these credentials may not do that"),
    ],
    ids=["expired token", "another region", "denied"],
)
def test_every_command_says_it_once_and_without_a_secret(
    seaweedfs: SeaweedFS,  # noqa: F811
    tmp_path: Path,
    answer: Say,
    words: str,
) -> None:
    ground = ground_on(seaweedfs, tmp_path)
    before = ground.local()
    checkpoint, artifact = (str(tmp_path / one.path) for one in (ground.checkpoint, ground.artifact))
    with Between(seaweedfs.port, lambda _method, _target: answer) as between:
        credentials = seaweedfs.credentials("between", endpoint_url=between.endpoint)
        here = f"s3://{seaweedfs.bucket}/{ground.prefix}"
        for verb in (
            ("publish", checkpoint, f"{here}/new"),
            ("fetch", f"{here}/checkpoints/{NAME}", str(tmp_path / "fetched")),
            ("copy", f"{here}/checkpoints", f"{here}/copied"),
            ("download", f"{here}/checkpoints", str(tmp_path / "downloaded")),
            ("probe", here),
        ):
            said = CliRunner().invoke(main, [*verb, "--credentials", str(credentials)])
            assert (said.exit_code, said.stdout) == (2, ""), verb
            assert said.stderr.startswith("milepost: ")
            assert said.stderr.count(words) == 1, verb
            assert KEY_ID not in said.stderr
            assert SECRET not in said.stderr
        kept = CliRunner().invoke(main, ["prune-verified", artifact, "--credentials", str(credentials)])
        assert (kept.exit_code, "another store" in kept.stdout) == (1, True)
    assert ground.local() == before
    assert not (tmp_path / "fetched").exists()


@pytest.mark.services
def test_no_credential_is_in_any_output_file_object_or_process_list(
    seaweedfs: SeaweedFS,  # noqa: F811
    tmp_path: Path,
) -> None:
    ground = ground_on(seaweedfs, tmp_path)
    bucket = bucket_of(seaweedfs.credentials(), name=seaweedfs.bucket)
    journal = bucket_of(seaweedfs.credentials(), name=seaweedfs.bucket, prefix=f"{ground.prefix}/")
    shown: list[bytes] = []

    def look(_method: str, _target: str) -> None:
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                mine = str(tmp_path).encode() in (line := (entry / "cmdline").read_bytes())
                shown.extend((line, (entry / "environ").read_bytes()) if mine else ())
            except OSError:  # it ended meanwhile
                continue

    program = (
        "import logging; logging.basicConfig(); logging.getLogger('milepost').setLevel(logging.DEBUG)\n"
        "from milepost.journal.cli import main; main()"
    )
    with Between(seaweedfs.port, look) as between:
        credentials = seaweedfs.credentials("between", endpoint_url=between.endpoint)
        into = f"s3://{seaweedfs.bucket}/{ground.prefix}/by-command"
        command = ["publish", str(tmp_path / ground.checkpoint.path), into, "--credentials", str(credentials)]
        done = subprocess.run([sys.executable, "-c", program, *command], capture_output=True, check=True)
    assert shown, "the command was never seen in the process list"
    (tmp_path / ground.checkpoint.path / ".uploaded").rename(tmp_path / "receipt")
    for verb in sorted(EVERY):
        ground.run(verb, bucket, journal)
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    stored = [bucket.read(key, limit=1 << 24)[0] for key in bucket.keys(f"{ground.prefix}/")]
    assert len(stored) > len(written) / 2 > 0
    for data in (*shown, done.stdout, done.stderr, *written, *stored):
        assert KEY_ID.encode() not in data
        assert SECRET.encode() not in data


@pytest.mark.slow
def test_ten_thousand_objects_are_copied_and_downloaded(tmp_path: Path) -> None:
    source = SimulatedBucket()
    names = tuple(f"{number:05}" for number in range(10_000))
    for name in names:
        source.create(f"many/{name}", name.encode(), deadline_s=0)
    here = remote(source, "many")
    target = remote(SimulatedBucket(), "kept")
    assert copy(here, target, ambient=AMBIENT, promises=KEPT).moved == names
    assert download(target, LocalDisk(tmp_path), "down", ambient=AMBIENT).moved == names
    assert {path.name: path.read_text() for path in (tmp_path / "down").iterdir()} == {name: name for name in names}
