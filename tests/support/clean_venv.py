"""Virtual environments with a wheel of swiftchat and its declared dependencies, nothing else."""

import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

from swiftchat.engine.cpu.compile_kernels import build, host_target
from tests.support.native.libraries import SOURCES

ROOT = Path(__file__).parents[2]
# Folders of a checkout that no wheel is built from, and what earlier builds leave.
_NOT_SOURCES = shutil.ignore_patterns("tests", "docs", "benchmarks", "build", "*.egg-info", ".*")
_BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


def build_wheel(folder: Path, compiler: str = "") -> tuple[Path, str]:
    """Build a wheel of the checkout in `folder`; return it and the output of the build.

    Nothing is installed there but setuptools and the compiler, which are those of this Python. The
    wheel gets the checkout's kernels, compiled before if they are not current. `compiler` is a
    shell script in place of zig, which has to compile them again.
    """
    sources = folder / "sources"
    libraries = Path("engine", "cpu", "lib")
    if not compiler:
        target = host_target()
        assert target is not None
        build(target, ROOT / libraries, kernels=SOURCES)
    shutil.copytree(ROOT, sources, ignore=_NOT_SOURCES)
    if compiler:
        shutil.rmtree(sources / libraries, ignore_errors=True)
    packages = folder / "build-requirements"
    package = packages / "ziglang"
    package.mkdir(parents=True)
    _link(distribution("setuptools"), packages)
    (package / "__init__.py").touch()
    zig = distribution("ziglang").locate_file("ziglang/zig")
    if compiler:
        (package / "zig").write_text(compiler)
        (package / "zig").chmod(0o755)
    else:
        (package / "zig").symlink_to(Path(str(zig)).resolve())
    done = subprocess.run(
        [sys.executable, "-S", "-c", _BUILD, str(folder)],  # -S: without this Python's packages
        cwd=sources,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(packages)},
    )
    assert done.returncode == 0, done.stdout
    (wheel,) = folder.glob("*.whl")
    return wheel, done.stdout


def _link(package: Distribution, folder: Path) -> None:
    """Make symbolic links in `folder` to the files and folders of an installed package."""
    for name in {file.parts[0] for file in package.files or ()}:
        link = folder / name
        if name not in ("..", "__pycache__") and link.suffix != ".pth" and not link.exists():
            link.symlink_to(Path(str(package.locate_file(name))).resolve())


class CleanVenv:
    """A virtual environment in `folder` with a wheel; programs find no compiler there."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self._folder = folder
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self.packages = folder / "lib" / version / "site-packages"
        self.python = folder / "bin" / "python"
        options = ["--no-deps", "--no-index", "--no-compile", "--quiet"]
        pip = [sys.executable, "-m", "pip", "--python", str(self.python)]
        subprocess.run([*pip, "install", *options, str(wheel)], check=True)
        for dependency in _dependencies(wheel):
            _link(dependency, self.packages)

    def run(self, program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a program of the environment, whose folder of programs is the whole PATH."""
        kept = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
        environ = {name: os.environ[name] for name in kept if name in os.environ}
        environ |= {"PATH": str(self._folder / "bin"), "HOME": str(self._folder)}
        command = [str(self._folder / "bin" / program), *arguments]
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environ
        )


def _dependencies(wheel: Path) -> list[Distribution]:
    """Return what a wheel needs, and what that needs, from this Python's packages."""
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(metadata).decode().splitlines()
    prefix = "Requires-Dist: "
    waiting = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
    found: dict[str, Distribution] = {}
    while waiting:
        requirement = Requirement(waiting.pop())
        is_needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if is_needed and requirement.name not in found:
            found[requirement.name] = distribution(requirement.name)
            waiting += found[requirement.name].requires or []
    return list(found.values())
