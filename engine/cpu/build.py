"""Compile `kernels/*.c` into one shared library per variant with the compiler of the ziglang wheel.

`setup.py` runs this file before anything is installed, so it imports only the standard library. In
a checkout: `python -m swiftchat.engine.cpu.build [--variant NAME] [--target SYSTEM-ARCHITECTURE]
[--out FOLDER] [--sanitize address,undefined,thread]`.
"""

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

KERNELS = Path(__file__).parent / "kernels"
LIBRARIES = Path(__file__).parent / "lib"


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


# `plain` runs on every processor of the architecture and tells what this one has (features.c).
# From the plainest to the fastest.
VARIANTS = {
    "x86_64": (
        Variant("plain", "x86_64"),
        Variant("avx2", "x86_64_v3"),
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
        Target("windows", "x86_64", "x86_64-windows-gnu", ".dll"),
    )
}
# No -ffast-math: the kernels keep NaNs and infinities, and operations are fused only where the
# source says so.
FLAGS = (
    "-std=c11",
    "-O3",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-signed-zeros",
    "-fassociative-math",
    "-ffp-contract=off",
)
WARNINGS = ("-Wall", "-Wextra", "-Wno-missing-field-initializers")
SANITIZERS = ("address", "undefined", "thread")
_GCC_CPUS = {
    "x86_64": ["-march=x86-64"],
    "x86_64_v3": ["-march=x86-64-v3"],
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
    systems = {"linux": "linux", "darwin": "macos", "win32": "windows"}
    architectures = {"amd64": "x86_64", "arm64": "aarch64"}
    machine = platform.machine().lower()
    name = f"{systems.get(sys.platform)}-{architectures.get(machine, machine)}"
    return TARGETS.get(name)


def _has_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (OSError, ValueError):  # musl does not know the name
        return False


def library_path(folder: Path, target: Target, variant: str) -> Path:
    return folder / f"swiftchat_cpu_{variant}{target.suffix}"


def build(
    target: Target,
    folder: Path = LIBRARIES,
    variants: Sequence[str] = (),
    sanitize: Sequence[str] = (),
    flags: Sequence[str] = (),
) -> list[Path]:
    """Compile `variants` (default: all) into `folder`; what did not change is not compiled again.

    Other processes that build into the folder at the same time wait. `flags` are added to the
    compiler's. Raises BuildError.
    """
    chosen = [v for v in VARIANTS[target.architecture] if not variants or v.name in variants]
    unknown = set(variants) - {v.name for v in chosen}
    if unknown:
        names = ", ".join(v.name for v in VARIANTS[target.architecture])
        raise BuildError(f"no variant {', '.join(sorted(unknown))} of {target.name}; {names}")
    compiler = _system_compiler() if _needs_system_compiler(sanitize) else _zig()
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / ".lock"):
        return [_build(compiler, target, folder, v, sanitize, flags) for v in chosen]


def _build(
    compiler: tuple[str, ...],
    target: Target,
    folder: Path,
    variant: Variant,
    sanitize: Sequence[str],
    flags: Sequence[str],
) -> Path:
    sources = sorted(KERNELS.glob("*.c"))
    if not sources:
        raise BuildError(f"no C files in {KERNELS}")
    arguments = [*_arguments(target, variant, sanitize), *flags]
    library = library_path(folder, target, variant.name)
    digest_file = library.with_suffix(".digest")
    digest = _digest([*compiler, *arguments])
    if library.exists() and digest_file.exists() and digest_file.read_text() == digest:
        return library
    with tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as temporary:
        made = Path(temporary) / library.name
        # The compiler computes all files at once, on all cores.
        command = [*compiler, *arguments, *map(str, sources), "-o", str(made)]
        if target.system != "windows":
            command.append("-lm")
        if target.system == "linux":
            command.append("-lpthread")
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        sys.stderr.write(done.stderr)
        if done.returncode != 0 or not made.exists():
            lines = done.stderr.strip().splitlines()
            error = next((line for line in lines if "error:" in line), lines[-1] if lines else "")
            raise BuildError(f"{variant.name} for {target.name}: {error or done.returncode}")
        digest_file.unlink(missing_ok=True)
        made.replace(library)
    digest_file.write_text(digest)
    return library


def _arguments(target: Target, variant: Variant, sanitize: Sequence[str]) -> list[str]:
    arguments = ["-shared", "-fvisibility=hidden", *WARNINGS]
    if target.system != "windows":
        arguments.append("-fPIC")
    if _needs_system_compiler(sanitize):
        arguments += [*_GCC_CPUS[variant.cpu], "-std=c11", "-O1", "-ffp-contract=off"]
    else:
        arguments += [*FLAGS, "-target", target.triple, f"-mcpu={variant.cpu}"]
    if sanitize:
        # Errors of undefined behavior stop the process, as the other sanitizers' errors do.
        if "undefined" in sanitize:
            arguments.append("-fno-sanitize-recover=undefined")
        return [*arguments, "-g", "-fno-omit-frame-pointer", f"-fsanitize={','.join(sanitize)}"]
    return [*arguments, "-g0", "-s"]


def _digest(command: Sequence[str]) -> str:
    """Return a hash of the compiler and its arguments, and of all sources and headers."""
    digest = hashlib.sha256("\0".join(command[1:]).encode())
    # Its path would differ in every isolated build environment, its version costs a process.
    digest.update(str(Path(command[0]).stat().st_size).encode())
    for file in sorted(KERNELS.glob("*.[ch]")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _zig() -> tuple[str, ...]:
    spec = find_spec("ziglang")
    if spec is None or not spec.submodule_search_locations:
        raise BuildError("no compiler: pip install ziglang")
    name = "zig.exe" if sys.platform == "win32" else "zig"
    return (str(Path(spec.submodule_search_locations[0]) / name), "cc")


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
        if sys.platform == "win32":
            import msvcrt
            import time

            while True:
                try:
                    handle.seek(0)
                    msvcrt.locking(handle.fileno(), msvcrt.LK_LOCK, 1)
                    break
                except OSError:  # raised after ten seconds
                    time.sleep(0.1)
            yield  # closing the file releases the lock
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX)
            yield


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
