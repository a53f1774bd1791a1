"""Children of the program in a working folder whose modules have the names of all that they import.

A child that imports any of them leaves a file.
"""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from swiftchat.errors import guard
from swiftchat.errors.interpreter import python_code, python_file, python_module
from tests.support.fake_engine import make_folder
from tests.support.forks.install import real_starts
from tests.test_structure import MAY_IMPORT, sources

_LIMIT_S = 120.0


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a module for every one that is installed, and one of Python's own."""
    folder = tmp_path_factory.mktemp("hostile")
    names = {*filter(str.isidentifier, packages_distributions()), *sys.stdlib_module_names, "pip"}
    code = f"open({str(folder / 'PWNED')!r}, 'a').write(__name__)\nraise ImportError(__name__)\n"
    for name in names - set(sys.builtin_module_names):
        (folder / f"{name}.py").write_text(code)
    (folder / "swiftchat").mkdir()
    (folder / "swiftchat" / "__init__.py").write_text(code)
    return folder


@pytest.fixture(autouse=True)
def _stays_clean(hostile: Path) -> Iterator[None]:
    """Start the programs: a forked one has imported everything already."""
    with real_starts():
        yield
    assert not (hostile / "PWNED").exists(), (hostile / "PWNED").read_text()


def nodes_of(text: str) -> Iterator[tuple[Path, ast.AST]]:
    """Yield the syntax trees' nodes of the program's files that have a text, with their files."""
    for package in MAY_IMPORT:
        for file in sources(package):
            source = file.read_text()
            if text in source:  # parsing the others would take most of the time
                for node in ast.walk(ast.parse(source)):
                    yield file, node


def calls_of(function: str) -> Iterator[tuple[Path, ast.Call]]:
    """Yield the calls of a function in the program, with their files."""
    for file, node in nodes_of(function):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == function:
            yield file, node


def started_modules() -> list[str]:
    """Return the modules that the program starts in children, from its source."""
    names = {call.args[0] for _, call in calls_of("python_module")}
    assert all(isinstance(name, ast.Constant) for name in names)
    return sorted(name.value for name in names)  # type: ignore[attr-defined]


def test_only_these_functions_start_python() -> None:
    for file, node in nodes_of("executable"):
        if file.name != "interpreter.py" and isinstance(node, ast.List | ast.Tuple):
            assert "sys.executable" not in map(ast.unparse, node.elts), file
    assert len(started_modules()) >= 6
    assert [file.name for file, _ in calls_of("python_file")] == ["interpreter.py"]
    assert [file.name for file, _ in calls_of("python_code")] == ["commands.py"]


def test_the_folder_is_hostile(hostile: Path) -> None:
    """Without -P the same start runs its code: the other tests could fail."""
    command = [part for part in python_module("swiftchat.engine.worker") if part != "-P"]
    subprocess.run(command, cwd=hostile, capture_output=True, timeout=_LIMIT_S)
    assert (hostile / "PWNED").exists()
    (hostile / "PWNED").unlink()


@pytest.mark.parametrize("module", started_modules())
def test_a_child_imports_nothing_from_the_working_folder(hostile: Path, module: str) -> None:
    """Without the arguments that it needs a child ends by itself, after its first imports."""
    done = subprocess.run(
        python_module(module),
        cwd=hostile,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_LIMIT_S,
    )
    assert b"ImportError" not in done.stderr


def test_the_guard_of_tool_servers_does_neither(
    hostile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(hostile))
    command = python_file(guard.__file__, "0", "echo", "started")
    done = subprocess.run(command, cwd=hostile, capture_output=True, timeout=_LIMIT_S)
    assert b"ImportError" not in done.stderr


def test_code_of_a_model_imports_nothing_from_the_working_folder(
    hostile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(hostile))
    command = python_code("import json, yaml; print(json.dumps(yaml.safe_load('[1]')))")
    done = subprocess.run(command, cwd=hostile, capture_output=True, timeout=_LIMIT_S)
    assert (done.stdout, done.stderr) == (b"[1]\n", b"")


def test_messages_name_no_command_that_imports_from_the_working_folder() -> None:
    """`python -m` does, `torchrun -m` too."""
    for file, node in nodes_of("-m"):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert "python -m swiftchat" not in node.value, file
            assert " -m pip" not in node.value.replace(" -P -m pip", ""), file


def test_an_answer_of_the_engine(hostile: Path, tmp_path: Path) -> None:
    """The engine imports all of torch; the template is rendered in a child too."""
    folder = make_folder(tmp_path / "model", hidden_size=32, num_attention_heads=2)
    dummy = ("--dummy", str(folder / "config.json"), "--device", "cpu")
    arguments = ("-m", str(folder), *dummy, "-n", "2", "--json", "-p", "hi")
    done = subprocess.run(
        python_module("swiftchat.chat", *arguments),
        cwd=hostile,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_LIMIT_S,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout)["finish_reason"]
