"""The wheel, installed without the repository and without its pins: a second-tier test."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run("uv", "build", "-q", "--out-dir", folder, cwd=ROOT)
    files = [*folder.glob("*.whl"), *folder.glob("*.tar.gz")]
    assert len(files) == 2
    run("uvx", "twine", "check", "--strict", *files, cwd=folder)
    return files[0]


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.10", "3.13"])
def test_the_wheel_alone_runs_the_demo(version: str, wheel: Path, tmp_path: Path) -> None:
    # without --no-config, uv would apply the overrides of a pyproject.toml above the folder
    python = interpreter(version, tmp_path)
    if python is None:
        pytest.skip(f"no Python {version} on this host")
    run("uv", "venv", "-q", "--python", python, "installed", cwd=tmp_path)
    installed = tmp_path / "installed" / "bin"
    install = ("uv", "pip", "install", "-q", "--no-config", "--python", installed / "python")
    run(*install, f"{wheel}[servers]", cwd=tmp_path)
    run(*install, "--no-deps", "petals==2.2.0.post1", cwd=tmp_path)
    printed = run(installed / "dist-eval", "run", "--nproc-per-node", "1", "--demo", "--output", "run", cwd=tmp_path)
    assert "596 of 596 examples, each exactly once" in printed
    assert "0.9748" in printed


def interpreter(version: str, folder: Path) -> str | None:
    """Returns a working interpreter of a version of Python, or None."""
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        return sys.executable
    pyenv = Path.home() / ".pyenv" / "versions"
    for python in [shutil.which(f"python{version}"), *pyenv.glob(f"{version}.*/bin/python{version}")]:
        if python and subprocess.run([python, "-c", ""], cwd=folder, capture_output=True).returncode == 0:
            return str(python)
    return None
