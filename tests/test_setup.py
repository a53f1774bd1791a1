"""Wheels of the checkout: one runs without a compiler, one was built without a working compiler."""

import json
import shutil
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from swiftchat.engine.cpu.compile_kernels import FAILURE, VARIANTS, host_target, library_path
from swiftchat.engine.cpu.library import choose_kernels
from tests.support.clean_venv import ROOT, CleanVenv, build_wheel
from tests.support.native.libraries import compile_kernels
from tests.support.remote_engine import chat_model_folder

TARGET = host_target()
pytestmark = [
    pytest.mark.skipif(TARGET is None, reason="no CPU kernels for this kind of machine"),
    pytest.mark.timeout(900),
]
LIBRARIES = Path("swiftchat/engine/cpu/lib")
PROMPT = ("-p", "Say something.", "--temp", "0", "--max-tokens", "8", "--device", "cpu")
COST = "torch's operators compute on the CPU instead: answers take several times as long"


def answering_device(venv: CleanVenv, model: Path) -> str:
    """Let a tiny model answer; return which device and kernels computed the answer."""
    done = venv.run("swiftchat", "-m", str(model), *PROMPT, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["usage"]["completion_tokens"] > 0
    return str(found["model"]["device"])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    chat_model_folder(folder)
    return folder


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))[0]


@pytest.fixture(scope="module")
def venv(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> CleanVenv:
    return CleanVenv(tmp_path_factory.mktemp("installed") / "venv", wheel)


@pytest.fixture
def libraries(venv: CleanVenv) -> Iterator[Path]:
    """The folder of the installed kernels, which a test may change."""
    folder = venv.packages / LIBRARIES
    kept = folder.rename(folder.with_name("kept"))
    shutil.copytree(kept, folder)
    yield folder
    shutil.rmtree(folder)
    kept.rename(folder)


def test_ci_installs_what_the_project_declares() -> None:
    """It builds with the packages of the tests, and takes torch from an index of its own."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    declared = project["build-system"]["requires"]
    assert {Requirement(text).name for text in declared} == {"setuptools", "ziglang"}
    assert set(declared) <= set(project["project"]["optional-dependencies"]["test"])
    declared += [text for text in project["project"]["dependencies"] if "torch" in text]
    for text in declared:
        assert f"'{text.partition(';')[0]}'" in script


def test_a_wheel_runs_without_a_compiler(wheel: Path, venv: CleanVenv, model: Path) -> None:
    assert TARGET is not None
    with zipfile.ZipFile(wheel) as archive:
        files = {name for name in archive.namelist() if name.startswith(f"{LIBRARIES}/")}
    variants = [variant.name for variant in VARIANTS[TARGET.architecture]]
    assert files == {library_path(LIBRARIES, TARGET, name).as_posix() for name in variants}
    script = (
        "import importlib.util, shutil, swiftchat.engine.cpu.library as library\n"
        "assert importlib.util.find_spec('ziglang') is None\n"
        "assert not any(map(shutil.which, ('cc', 'gcc', 'clang', 'zig')))\n"
        "choice = library.choose_kernels({})\n"
        "print(choice.variant, library.LIBRARIES)"
    )
    done = venv.run("python", "-c", script)
    assert done.returncode == 0, done.stderr
    compile_kernels()
    expected = choose_kernels({})
    assert done.stdout.split() == [str(expected.variant), str(venv.packages / LIBRARIES)]
    kernels = f"{expected.variant} kernels" if expected.variant else expected.reason
    assert kernels in answering_device(venv, model)


def test_without_a_working_compiler_torch_computes(
    venv: CleanVenv, libraries: Path, model: Path, tmp_path: Path
) -> None:
    """The warning has the reason; `doctor` shows it later, and what it costs.

    The wheels differ in nothing but the folder of the kernels.
    """
    compiler = "#!/bin/sh\necho 'error: no space left on device' >&2\nexit 1\n"
    wheel, output = build_wheel(tmp_path, compiler)
    assert "warning: the CPU kernels are not compiled (" in output
    assert "error: no space left on device). swiftchat works without them" in output
    with zipfile.ZipFile(wheel) as archive:
        files = [name for name in archive.namelist() if name.startswith(f"{LIBRARIES}/")]
        assert files == [f"{LIBRARIES}/{FAILURE}"]
        shutil.rmtree(libraries)
        archive.extract(files[0], venv.packages)
    done = venv.run("swiftchat", "doctor", "--json")
    assert done.returncode == 0, done.stderr
    (check,) = (row for row in json.loads(done.stdout)["checks"] if row["name"] == "CPU kernels")
    assert check["state"] == "note"
    assert check["text"].startswith("none: swiftchat was installed without compiled kernels: ")
    assert check["text"].endswith("error: no space left on device")
    assert check["hint"] == COST
    assert "installed without compiled kernels" in answering_device(venv, model)
