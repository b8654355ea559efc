"""What only a real disk has: modes, FIFOs, descriptors that children inherit, kernels without a flag."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from milepost.engines.disks import write_all
from milepost.engines.disks.local import LocalDisk


def test_the_root_itself_may_be_reached_through_a_symlink(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "alias").symlink_to("real")
    disk = LocalDisk(tmp_path / "alias")
    with disk.create("a") as sink:
        write_all(sink, b"x")
    assert (tmp_path / "real" / "a").read_bytes() == b"x"
    assert disk.names("") == ("a",)


def test_a_relative_root_stays_where_it_was_when_the_process_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    disk = LocalDisk("")
    monkeypatch.chdir("elsewhere")
    disk.mkdir("a")
    assert (tmp_path / "a").is_dir()


def test_a_created_file_may_be_read_by_all_and_written_by_its_owner(tmp_path: Path) -> None:
    LocalDisk(tmp_path).create("a").close()
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o644 & ~mask


@pytest.mark.timeout(10)
def test_a_fifo_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    disk = LocalDisk(tmp_path)
    found = disk.stat("fifo")
    assert found is not None
    assert found.kind == "other"
    for verb in (disk.open, disk.sync_file, disk.lock, lambda path: disk.read(path, limit=9)):
        with pytest.raises(OSError, match="not a regular file") as caught:
            verb("fifo")
        assert caught.value.errno == errno.EINVAL


def test_an_error_names_the_whole_path_and_both_of_two(tmp_path: Path) -> None:
    disk = LocalDisk(tmp_path)
    disk.mkdir("d")
    with pytest.raises(FileNotFoundError) as one:
        disk.open("d/missing")
    assert one.value.filename == str(tmp_path / "d/missing") == disk.where("d/missing")
    with pytest.raises(FileNotFoundError) as two:
        disk.rename("d/missing", "d/target")
    assert (two.value.filename, two.value.filename2) == (disk.where("d/missing"), disk.where("d/target"))


def test_free_is_what_an_unprivileged_writer_may_use(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    figures = os.statvfs(tmp_path)
    slack = 1 << 30  # others write to this file system at the same time
    assert abs(LocalDisk(tmp_path).free("d") - figures.f_bavail * figures.f_frsize) < slack


def test_no_verb_leaves_a_descriptor_open(tmp_path: Path) -> None:
    disk = LocalDisk(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)

    def use_and_fail() -> None:
        disk.mkdir("d")
        for bulk in (False, True):
            with disk.create("d/a", bulk=bulk) as sink:
                write_all(sink, b"x")
            with disk.open("d/a", bulk=bulk) as source:
                source.read_into(0, bytearray(9))
            disk.unlink("d/a")
        disk.lock("d/lock").release()
        disk.unlink("d/lock")
        disk.sync_dir("d")
        for verb in (disk.open, disk.names, disk.free, disk.lock, disk.sync_file, disk.rmdir):
            for path in ("link/x", "link", "missing/x", "d"):
                if (verb, path) not in ((disk.names, "d"), (disk.free, "d"), (disk.rmdir, "d")):
                    with pytest.raises(OSError):
                        verb(path)
            (tmp_path / "missing").unlink(missing_ok=True)
        disk.rmdir("d")

    use_and_fail()
    before = os.listdir("/proc/self/fd")
    use_and_fail()
    assert os.listdir("/proc/self/fd") == before


LOCK_AND_FORK = """
import os, sys, time
from milepost.engines.disks.local import LocalDisk
lock = LocalDisk(sys.argv[1]).lock("lock")
child = os.fork()
if child:
    print(child, flush=True)
time.sleep(60)
"""


@pytest.mark.kills
def test_a_lock_ends_with_its_process_though_a_forked_child_lives_on(tmp_path: Path) -> None:
    disk = LocalDisk(tmp_path)
    holder = subprocess.Popen([sys.executable, "-c", LOCK_AND_FORK, tmp_path], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    with holder.stdout:
        child = int(holder.stdout.readline())
    try:
        with pytest.raises(BlockingIOError):
            disk.lock("lock")
        holder.kill()
        holder.wait()
        deadline = time.monotonic() + 5
        while True:  # the child lets go as soon as it runs
            try:
                disk.lock("lock").release()
                break
            except BlockingIOError:
                assert time.monotonic() < deadline, "the child still holds the lock"
                time.sleep(0.01)
        os.kill(child, 0)  # it lives
    finally:
        os.kill(child, signal.SIGKILL)


PUBLISH = """
import errno, os, sys
from milepost.engines.disks.local import LocalDisk
disk = LocalDisk(sys.argv[1])
for name in ("d", "e", "f"):
    disk.mkdir(name)
disk.mkdir("f/full")
disk.create("file").close()
for target in ("e", "f", "file"):
    try:
        disk.publish("d", target)
        sys.exit(f"replaced {target}")
    except FileExistsError:
        pass
disk.publish("d", "new")
try:
    disk.publish("file", "other")
    sys.exit("renamed a file")
except OSError as error:
    if error.errno != errno.EOPNOTSUPP:
        raise
print(*disk.names(""))
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace to take RENAME_NOREPLACE away")
@pytest.mark.parametrize("code", ["EINVAL", "ENOSYS"])
def test_without_noreplace_a_directory_is_published_by_rename_and_a_file_is_refused(
    tmp_path: Path, code: str
) -> None:
    strace = [
        "strace",
        "-f",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        "trace=renameat2",
        "-e",
        f"inject=renameat2:error={code}",
    ]
    run = subprocess.run(
        [*strace, sys.executable, "-c", PUBLISH, tmp_path], capture_output=True, text=True, check=False
    )
    if "ptrace" in run.stderr:
        pytest.skip(f"strace may not trace here: {run.stderr.strip()}")
    assert (run.returncode, run.stdout, run.stderr) == (0, "e f file new\n", "")
