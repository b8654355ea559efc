"""What is shipped is what was tested: the wheel and the sdist hold real files and run outside the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import milepost

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).parents[2]
FLOORS = ("transitions", "engines", "journal")
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel, built in a copy so that nothing is left in the checkout.

    setuptools is in every environment that has torch, so no build environment has to be downloaded.
    """
    copy, dist = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("dist")
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in (*FLOORS, "src"):
        shutil.copytree(CHECKOUT / folder, copy / folder, symlinks=True, ignore=unwanted)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(CHECKOUT / name, copy)
    for hook in ("build_sdist", "build_wheel"):
        subprocess.run([sys.executable, "-c", BUILD, hook, str(dist)], cwd=copy, check=True, capture_output=True)
    return dist


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a command of a new environment that has milepost from the wheel and everything else from this one."""
    venv = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    (wheel,) = built.glob("*.whl")
    install = [str(venv / "bin/python"), "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True)
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "heavy.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    outside = tmp_path_factory.mktemp("outside")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(venv / "bin" / command), *arguments], cwd=outside, env=environment, capture_output=True, text=True
        )

    return run


def sources(floor: str) -> set[str]:
    """The files of a floor that have to be shipped, as the wheel names them."""
    return {f"milepost/{floor}/{path.relative_to(CHECKOUT / floor)}" for path in (CHECKOUT / floor).rglob("*.py")}


def succeeded(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout.strip()


@pytest.mark.parametrize("floor", FLOORS)
def test_the_wheel_holds_every_file_of_a_floor_itself(built: Path, floor: str) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if name.startswith(f"milepost/{floor}/")}
        assert shipped == sources(floor)
        for name in shipped:
            assert archive.read(name) == (CHECKOUT / name.removeprefix("milepost/")).read_bytes()


@pytest.mark.parametrize("floor", FLOORS)
def test_the_sdist_holds_every_file_of_a_floor_and_no_link(built: Path, floor: str) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        members = {member.name.partition("/src/")[2]: member for member in archive.getmembers()}
    assert sources(floor) <= set(members)
    assert all(members[name].isfile() for name in sources(floor))


def test_the_wheel_is_typed_and_carries_its_license_and_nothing_foreign(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (license_name,) = (name for name in names if name.endswith(".dist-info/licenses/LICENSE"))
        assert archive.read(license_name) == (CHECKOUT / "LICENSE").read_bytes()
    assert "milepost/py.typed" in names
    assert {name.partition("/")[0] for name in names} == {"milepost", f"milepost-{milepost.__version__}.dist-info"}


def test_milepost_comes_from_the_wheel_and_not_from_the_checkout(installed: Run) -> None:
    where = succeeded(installed("python", "-c", "import milepost; print(milepost.__file__)"))
    assert not Path(where).is_relative_to(CHECKOUT)
    assert Path(where).parent.parent.name == "site-packages"


def test_the_public_modules_import_outside_the_checkout(installed: Run) -> None:
    names = "milepost.journal, milepost.engines.trainers, milepost.engines.simulated, milepost.transitions.machine"
    succeeded(installed("python", "-W", "error", "-c", f"import {names}"))


def test_the_command_says_its_version(installed: Run) -> None:
    assert milepost.__version__ in succeeded(installed("milepost", "--version"))


def test_the_demo_runs_outside_the_checkout(installed: Run) -> None:
    succeeded(installed("milepost", "demo"))
