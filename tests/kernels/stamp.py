"""The stamp of the kernels: the sources that were checked, by which compilers, and when.

Compiling every kernel for every processor, and their tests with sanitizers, take minutes. Only a
change of what they depend on can change their result, so `python -m tests.kernels` runs them then,
and writes `stamp.json` if all have passed. `test_stamp.py` fails if the stamp is of other sources.
"""

import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from swiftchat.cuda import nvrtc
from tests.support.kernels.variants import compilations
from tests.support.native.libraries import SOURCES

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
STAMP = FOLDER / "stamp.json"
COMMAND = "python -m tests.kernels"


@dataclass(frozen=True)
class Entry:
    """What the stamp says of one part: a SHA-256 digest, names of compilers, an ISO date."""

    digest: str
    compilers: str
    date: str


@dataclass(frozen=True)
class Part:
    """Kernels that are checked together, by the tests of a file that the suite does not collect."""

    name: str
    check: Path
    digest: Callable[[], str]
    compilers: Callable[[], str]


def digest(files: Iterable[Path], *facts: str) -> str:
    """Return the SHA-256 digest of the names and contents of files in `ROOT`, and of facts."""
    found = hashlib.sha256()
    for file in sorted(files):
        for content in (file.relative_to(ROOT).as_posix().encode(), file.read_bytes()):
            found.update(len(content).to_bytes(8, "little") + content)
    found.update(json.dumps(facts).encode())
    return found.hexdigest()


def cuda_digest() -> str:
    """Return the digest of the CUDA sources, of the compiled variants and of their check."""
    files = [*(ROOT / "cuda" / "kernels").glob("*/*.cu*")]
    facts = []
    for compiled in compilations():
        options = nvrtc.compile_options(compiled.arch, compiled.defines)
        kept = [option for option in options if not option.startswith("-I")]
        facts.append(f"{compiled.name} {' '.join(kept)} {compiled.is_optimized}")
    return digest([*files, FOLDER / "check_cuda.py"], *facts)


def cpu_digest() -> str:
    """Return the digest of the C sources, of what chooses their variants, and of their check."""
    build = SOURCES.with_name("compile_kernels.py")
    stress = ROOT / "tests" / "engine" / "cpu" / "pool_stress.c"
    return digest([*SOURCES.glob("*.[ch]"), build, stress, FOLDER / "check_cpu.py"])


def cpu_compilers() -> str:
    gcc = shutil.which("gcc")
    if gcc is None:
        return ""
    first_line = subprocess.check_output([gcc, "--version"], text=True).splitlines()[0]
    return f"zig {version('ziglang')}, {first_line}"


PARTS = (
    Part("cpu", FOLDER / "check_cpu.py", cpu_digest, cpu_compilers),
    Part("cuda", FOLDER / "check_cuda.py", cuda_digest, lambda: f"NVRTC {nvrtc.version()}"),
)


def read(file: Path = STAMP) -> dict[str, Entry]:
    """Return the entries of the stamp by the name of their part; none if there is no file."""
    if not file.exists():
        return {}
    return {name: Entry(**entry) for name, entry in json.loads(file.read_text("utf-8")).items()}


def write(entries: dict[str, Entry], file: Path = STAMP) -> None:
    table = {name: asdict(entry) for name, entry in sorted(entries.items())}
    file.write_text(f"{json.dumps(table, indent=2)}\n", "utf-8")


def is_stale(part: Part, entries: dict[str, Entry]) -> bool:
    """Return whether a part has no entry, or one of other sources."""
    return part.name not in entries or entries[part.name].digest != part.digest()
