"""Compile `kernels/*.c` into one shared library per variant with the compiler of the ziglang wheel.

`setup.py` runs this file before anything is installed, so it imports only the standard library. In
a checkout: `python engine/cpu/compile_kernels.py [--variant NAME] [--target SYSTEM-ARCHITECTURE]
[--out FOLDER] [--sanitize address,undefined,thread]`.
"""

import argparse
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

KERNELS = Path(__file__).parent / "kernels"
LIBRARIES = Path(__file__).parent / "lib"
# The headers that Python reads, in the order of their includes.
INTERFACE = ("matrix.h", "program.h", "pack_source.h")
# The file beside the libraries that says why a package was built without them.
FAILURE = "not_compiled.txt"


class BuildError(Exception):
    """A library cannot be compiled; the message has the reason, and the compiler's output."""


@dataclass(frozen=True)
class Variant:
    """One compilation of all kernels: its name and the processor, as zig's -mcpu names it."""

    name: str
    cpu: str


@dataclass(frozen=True)
class Target:
    """A system and an architecture that libraries are compiled for."""

    system: str
    architecture: str
    triple: str
    suffix: str

    @property
    def name(self) -> str:
        return f"{self.system}-{self.architecture}"


# `plain` runs on every processor of the architecture and tells what this one has (cpu_features.c).
# From the plainest to the fastest.
VARIANTS = {
    "x86_64": (
        Variant("plain", "x86_64"),
        Variant("avx2", "x86_64_v3"),
        Variant("avxvnni", "x86_64_v3+avxvnni"),
        Variant("avx512", "x86_64_v4+avx512vnni"),
        Variant("avx512bf16", "x86_64_v4+avx512vnni+avx512bf16"),
    ),
    "aarch64": (
        Variant("plain", "generic"),
        Variant("neon", "generic+v8_2a+dotprod+fullfp16"),
        Variant("i8mm", "generic+v8_2a+dotprod+fullfp16+i8mm"),
    ),
}
PLAINEST = "plain"
# glibc 2.17 is manylinux2014, the oldest that torch's wheels run on.
TARGETS = {
    target.name: target
    for target in (
        Target("linux", "x86_64", "x86_64-linux-gnu.2.17", ".so"),
        Target("linux", "aarch64", "aarch64-linux-gnu.2.17", ".so"),
        Target("macos", "x86_64", "x86_64-macos.11.0", ".dylib"),
        Target("macos", "aarch64", "aarch64-macos.11.0", ".dylib"),
    )
}
# No -ffast-math: the kernels keep NaNs and infinities, sums are added in the order of the source,
# and operations are fused only where it says so.
FLAGS = (
    "-std=c11",
    "-O3",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
)
WARNINGS = ("-Wall", "-Wextra", "-Wno-missing-field-initializers")
SANITIZERS = ("address", "undefined", "thread")
_GCC_CPUS = {
    "x86_64": ["-march=x86-64"],
    "x86_64_v3": ["-march=x86-64-v3"],
    "x86_64_v3+avxvnni": ["-march=x86-64-v3", "-mavxvnni"],
    "x86_64_v4+avx512vnni": ["-march=x86-64-v4", "-mavx512vnni"],
    "x86_64_v4+avx512vnni+avx512bf16": ["-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16"],
    "generic": ["-march=armv8-a"],
    "generic+v8_2a+dotprod+fullfp16": ["-march=armv8.2-a+dotprod+fp16"],
    "generic+v8_2a+dotprod+fullfp16+i8mm": ["-march=armv8.2-a+dotprod+fp16+i8mm"],
}


def host_target() -> Target | None:
    """Return the target of this machine, or None if there are no kernels for it."""
    if sys.platform == "linux" and not _has_glibc():
        return None
    systems = {"linux": "linux", "darwin": "macos"}
    architectures = {"amd64": "x86_64", "arm64": "aarch64"}
    machine = platform.machine().lower()
    name = f"{systems.get(sys.platform)}-{architectures.get(machine, machine)}"
    return TARGETS.get(name)


def _has_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (OSError, ValueError):  # musl does not know the name
        return False


def interface_digest(kernels: Path = KERNELS) -> int:
    """Return a hash of 64 bits of the headers that Python reads."""
    digest = hashlib.sha256(b"".join((kernels / name).read_bytes() for name in INTERFACE))
    return int.from_bytes(digest.digest()[:8], "little")


def library_path(folder: Path, target: Target, variant: str) -> Path:
    return folder / f"swiftchat_cpu_{variant}{target.suffix}"


def build(
    target: Target,
    folder: Path = LIBRARIES,
    variants: Sequence[str] = (),
    sanitize: Sequence[str] = (),
    flags: Sequence[str] = (),
    kernels: Path = KERNELS,
) -> list[Path]:
    """Compile `variants` (default: all) into `folder`; what did not change is not compiled again.

    Other processes that build into the folder at the same time wait. `flags` are added to the
    compiler's, `kernels` is the folder of the sources. Raises BuildError.
    """
    chosen = [v for v in VARIANTS[target.architecture] if not variants or v.name in variants]
    unknown = set(variants) - {v.name for v in chosen}
    if unknown:
        names = ", ".join(v.name for v in VARIANTS[target.architecture])
        raise BuildError(f"no variant {', '.join(sorted(unknown))} of {target.name}; {names}")
    compiler = _system_compiler() if _needs_system_compiler(sanitize) else _zig()
    toolchain = _Toolchain(compiler, target, tuple(sanitize), tuple(flags), kernels)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / ".lock"):
        outdated = [v for v in chosen if not _is_current(folder, toolchain, v)]
        if outdated:
            _build(folder, toolchain, outdated)
    return [library_path(folder, target, variant.name) for variant in chosen]


@dataclass(frozen=True)
class _Toolchain:
    """A compiler, its arguments as far as they do not depend on the variant, and the sources."""

    compiler: tuple[str, ...]
    target: Target
    sanitize: tuple[str, ...]
    flags: tuple[str, ...]
    kernels: Path

    def compile(self, variant: Variant) -> list[str]:
        """Return the command that compiles a file, without the file."""
        arguments = [*self._target(variant.cpu), "-fPIC", "-fvisibility=hidden", *WARNINGS]
        if _needs_system_compiler(self.sanitize):
            arguments += ["-std=c11", "-O1", "-ffp-contract=off", "-Wno-unknown-pragmas"]
        else:
            arguments += FLAGS
        # Reports of sanitizers name lines, not variables, whose places take a third of the time.
        arguments += ["-g1", "-fno-omit-frame-pointer"] if self.sanitize else ["-g0"]
        arguments.append(f"-DINTERFACE_DIGEST={interface_digest(self.kernels)}ULL")
        return [*self.compiler, "-c", *arguments, *self._sanitize(), *self.flags]

    def link(self, objects: Sequence[str] = ()) -> list[str]:
        """Return the command that links object files.

        It names the same processor for all variants, so that zig compiles its runtime once.
        """
        cpu = VARIANTS[self.target.architecture][0].cpu
        arguments = ["-shared", *self._target(cpu), *self._sanitize(), *objects, "-lm"]
        if not self.sanitize:
            arguments.append("-s")
        if self.target.system == "linux":
            arguments.append("-lpthread")
        return [*self.compiler, *arguments]

    def digest(self, variant: Variant) -> str:
        """Return a hash of compiler and arguments, and of all sources and headers."""
        command = "\0".join([*self.compile(variant)[1:], *self.link()[1:]])
        digest = hashlib.sha256(command.encode())
        # The compiler's path differs in every isolated build environment; asking for its version
        # takes a process.
        digest.update(str(Path(self.compiler[0]).stat().st_size).encode())
        for file in sorted(self.kernels.glob("*.[ch]")):
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
        return digest.hexdigest()

    def _target(self, cpu: str) -> list[str]:
        if _needs_system_compiler(self.sanitize):
            return _GCC_CPUS[cpu]
        return ["-target", self.target.triple, f"-mcpu={cpu}"]

    def _sanitize(self) -> list[str]:
        if not self.sanitize:
            return []
        arguments = [f"-fsanitize={','.join(self.sanitize)}"]
        if "undefined" in self.sanitize:
            # Undefined behavior stops the process, as the other sanitizers' errors do.
            arguments.append("-fno-sanitize-recover=undefined")
        return arguments


def _is_current(folder: Path, toolchain: _Toolchain, variant: Variant) -> bool:
    library = library_path(folder, toolchain.target, variant.name)
    try:
        return library.exists() and _digest_file(library).read_text() == toolchain.digest(variant)
    except OSError:
        return False


def _digest_file(library: Path) -> Path:
    return library.with_suffix(".digest")


def _build(folder: Path, toolchain: _Toolchain, variants: Sequence[Variant]) -> None:
    """Compile each file for each variant, on all cores, and link."""
    sources = sorted(toolchain.kernels.glob("*.c"))
    if not sources:
        raise BuildError(f"no C files in {toolchain.kernels}")
    with tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as name:
        temporary = Path(name)

        def compile_file(job: tuple[Variant, Path]) -> Path:
            variant, source = job
            made = temporary / f"{variant.name}-{source.stem}.o"
            command = [*toolchain.compile(variant), str(source), "-o", str(made)]
            _run(command, f"{source.name} for {variant.name}, {toolchain.target.name}")
            return made

        jobs = [(variant, source) for variant in variants for source in sources]
        with ThreadPoolExecutor(_num_cpus()) as pool:
            objects = [str(path) for path in pool.map(compile_file, jobs)]
        for i, variant in enumerate(variants):
            library = library_path(folder, toolchain.target, variant.name)
            made = temporary / library.name
            own = objects[i * len(sources) : (i + 1) * len(sources)]
            command = [*toolchain.link(own), "-o", str(made)]
            _run(command, f"{variant.name} for {toolchain.target.name}")
            _digest_file(library).unlink(missing_ok=True)
            made.replace(library)
            _digest_file(library).write_text(toolchain.digest(variant))


def _run(command: Sequence[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    sys.stderr.write(done.stderr)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise BuildError(f"{what}: {next((ln for ln in lines if 'error:' in ln), lines[-1])}")


def _num_cpus() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _zig() -> tuple[str, ...]:
    spec = find_spec("ziglang")
    if spec is None or not spec.submodule_search_locations:
        raise BuildError("no compiler: pip install ziglang")
    return (str(Path(spec.submodule_search_locations[0]) / "zig"), "cc")


def _needs_system_compiler(sanitize: Sequence[str]) -> bool:
    """The ziglang wheel has no AddressSanitizer and no ThreadSanitizer for shared libraries."""
    return bool({"address", "thread"} & set(sanitize))


def _system_compiler() -> tuple[str, ...]:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise BuildError("these sanitizers need gcc, and this machine has none")
    return (compiler,)


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Hold the lock of this file; wait for another process that holds it."""
    with file.open("a+b") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield  # closing the file releases the lock


def main() -> None:
    parser = argparse.ArgumentParser(description="Compile the CPU kernels.")
    parser.add_argument("--variant", action="append", default=[], help="default: all")
    parser.add_argument("--target", choices=TARGETS, help="default: this machine")
    parser.add_argument("--out", type=Path, help="default: engine/cpu/lib")
    parser.add_argument("--sanitize", default="", help=f"of {','.join(SANITIZERS)}")
    options = parser.parse_args()
    sanitize = [name for name in options.sanitize.split(",") if name]
    target = TARGETS[options.target] if options.target else host_target()
    if target is None:
        parser.error(f"there are no kernels for {sys.platform} on {platform.machine()}")
    if (sanitize or target != host_target()) and options.out is None:
        parser.error("--out is needed with --sanitize and for another machine")
    if unknown := set(sanitize) - set(SANITIZERS):
        parser.error(f"no sanitizer {', '.join(unknown)}")
    try:
        for library in build(target, options.out or LIBRARIES, options.variant, sanitize):
            print(os.fspath(library))
    except BuildError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
