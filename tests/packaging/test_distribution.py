"""The sdist and the wheel: complete, accepted by twine, and usable in a fresh environment."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import langgraph_durable

pytestmark = pytest.mark.packaging

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> str:
    ended = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a fresh sdist, and of the wheel that was built from it."""
    directory = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", directory, ROOT)
    return directory


def only(directory: Path, pattern: str) -> Path:
    [found] = directory.glob(pattern)
    return found


def test_twine_accepts_both(dist: Path) -> None:
    out = run(sys.executable, "-m", "twine", "check", "--strict", *dist.iterdir())
    assert out.count("PASSED") == 2


def test_wheel_has_the_package_and_nothing_else(dist: Path) -> None:
    with zipfile.ZipFile(only(dist, "*.whl")) as wheel:
        names = set(wheel.namelist())
    tracked = run(
        "git", "ls-files", "--cached", "--others", "--exclude-standard", "langgraph_durable"
    ).split()
    package = {name for name in tracked if (ROOT / name).is_file()}
    assert {name for name in names if ".dist-info/" not in name} == package
    assert "langgraph_durable/py.typed" in names
    assert {Path(name).name for name in names if name.endswith(".sql")} >= {"0001_initial.sql"}


def test_sdist_has_what_a_build_and_a_reader_need(dist: Path) -> None:
    with tarfile.open(only(dist, "*.tar.gz")) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {
        "README.md",
        "CHANGELOG.md",
        "LICENSE",
        "pyproject.toml",
        "docs/index.md",
        "benchmarks/growth.png",
        "langgraph_durable/py.typed",
    } <= names
    assert not {name for name in names if name.startswith(("tests/", ".github", "docs/_build"))}


def test_fresh_environment_installs_the_wheel_and_runs_a_graph(
    dist: Path, tmp_path: Path, empty_conninfo: str
) -> None:
    venv.create(tmp_path / "fresh", with_pip=True)
    bin_ = tmp_path / "fresh" / "bin"
    run(bin_ / "python", "-m", "pip", "install", "--quiet", only(dist, "*.whl"), "langgraph")
    version = run(bin_ / "langgraph-durable", "--version", cwd=tmp_path).strip()
    assert version == langgraph_durable.__version__
    assert "setup" in run(bin_ / "langgraph-durable", "--help", cwd=tmp_path)
    where = run(bin_ / "python", "-c", "import langgraph_durable as it; print(it.__file__)", cwd=tmp_path)
    assert where.startswith(str(tmp_path))
    smoke = ROOT / "tests" / "packaging" / "smoke.py"
    assert run(bin_ / "python", smoke, cwd=tmp_path, DATABASE_URL=empty_conninfo) == "4 messages\n"
