"""Compile the CPU kernels when the package is built; `pyproject.toml` has everything else.

The compiler is the ziglang wheel, a build requirement. Without it, or if it fails, the package has
no CPU kernels and torch's operators compute.
"""

import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

CPU = Path(__file__).parent / "engine" / "cpu"
# The oldest systems that the libraries of each target run on.
WHEEL_PLATFORMS = {
    "linux-x86_64": "manylinux_2_17_x86_64",
    "linux-aarch64": "manylinux_2_17_aarch64",
    "macos-x86_64": "macosx_11_0_x86_64",
    "macos-aarch64": "macosx_11_0_arm64",
}


def _load_build() -> ModuleType:
    """Load engine/cpu/compile_kernels.py from its file: the package is not installed yet."""
    spec = importlib.util.spec_from_file_location(
        "swiftchat_compile_kernels", CPU / "compile_kernels.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


build = _load_build()


class BuildWithKernels(build_py):
    """Compile the libraries in the checkout, and put them into the wheel."""

    def run(self) -> None:
        super().run()
        made = _compile()
        if self.editable_mode:
            return
        folder = Path(self.build_lib, "swiftchat", "engine", "cpu", "lib")
        shutil.rmtree(folder, ignore_errors=True)
        for file in made:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, folder)


def _compile() -> list[Path]:
    """Compile variants that are not current; return the files that belong into the package.

    If that fails print a warning, and write the reason to a file, which is the only one: pip hides
    the warning unless it fails itself, `swiftchat doctor` shows the reason.
    """
    target = build.host_target()
    if target is None:
        return []
    failure: Path = build.LIBRARIES / build.FAILURE
    failure.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as cache:
        os.environ.setdefault("ZIG_GLOBAL_CACHE_DIR", cache)  # not 100 MB in the home folder
        try:
            libraries: list[Path] = build.build(target)
        except (build.BuildError, OSError) as error:
            print(
                f"warning: the CPU kernels are not compiled ({error}). swiftchat works without "
                "them, but answers several times more slowly on a CPU.",
                file=sys.stderr,
            )
            failure.parent.mkdir(parents=True, exist_ok=True)
            failure.write_text(f"{error}\n", encoding="utf-8")
            return [failure]
        finally:
            del os.environ["ZIG_GLOBAL_CACHE_DIR"]
    return libraries


class PlatformDistribution(Distribution):
    """A distribution that setuptools installs among those of this platform."""

    def has_ext_modules(self) -> bool:
        return build.host_target() is not None


class PlatformWheel(bdist_wheel):
    """Tag the wheel for this platform and every Python: ctypes loads the libraries."""

    def get_tag(self) -> tuple[str, str, str]:
        tag: tuple[str, str, str] = super().get_tag()
        target = build.host_target()
        if target is None:
            return tag
        platform = tag[2] if self.plat_name_supplied else WHEEL_PLATFORMS[target.name]
        return "py3", "none", platform


setup(
    distclass=PlatformDistribution,
    cmdclass={"build_py": BuildWithKernels, "bdist_wheel": PlatformWheel},
)
