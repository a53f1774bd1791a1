"""swiftchat and llama.cpp on the CPU with the same GGUF files, in one run, taking turns.

    python benchmarks/cpu_peers.py MODEL.gguf … [--threads 2] [--rounds 5] [--avx2] [--json FILE]
    python benchmarks/cpu_peers.py MODEL.gguf --quantize Q4_0 Q4_1 Q8_0 Q4_K_M BF16

Each program prefills 512 tokens, then decodes 128 tokens greedily after a short prompt: with
`--threads`, with one thread, four sequences at once, and with another process that keeps one core
busy. Rounds interleave the programs, so that changes of the machine's speed affect both; the table
has medians and the ratio of swiftchat to llama.cpp.

llama.cpp is built from the source package of llama-cpp-python for this machine (cmake and a C++
compiler are needed; some minutes), or only for AVX2 with `--avx2`, which limits swiftchat and torch
as well. `--llama FOLDER` is a folder with an earlier build's `llama-bench`, `llama-batched-bench`
and `llama-quantize`. `--quantize` first writes the first file in these types.
"""

import argparse
import json
import multiprocessing
import os
import platform
import re
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swiftchat.engine.api.client import EngineClient
    from swiftchat.engine.api.protocol import Finished

LLAMA_VERSION = "0.3.36"
LLAMA_TOOLS = ("llama-bench", "llama-batched-bench", "llama-quantize")
AVX2_LIMITS = {
    "SWIFTCHAT_CPU_KERNELS": "avx2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}
NUM_PREFILLED, NUM_DECODED, NUM_SHORT = 512, 128, 16
NUM_SEQUENCES = 4


@dataclass(frozen=True)
class Case:
    """One line of the table; `kind` is "prefill" or "decode"."""

    name: str
    kind: str
    num_threads: int
    num_sequences: int = 1
    is_disturbed: bool = False


@dataclass
class Swiftchat:
    """Engines of one model, one for each number of threads."""

    model: Path
    clients: "dict[int, EngineClient]" = field(default_factory=dict)
    num_prompts: int = 0

    def measure(self, case: Case) -> float:
        """Return tokens/s."""
        client = self._client(case.num_threads)
        if case.kind == "prefill":
            return NUM_PREFILLED / self._run(client, 1, NUM_PREFILLED, 1)[0].prefill_s
        ends = self._run(client, case.num_sequences, NUM_SHORT, NUM_DECODED)
        num_decoded = sum(end.completion_tokens - 1 for end in ends)
        return num_decoded / max(end.decode_s for end in ends)

    def _client(self, num_threads: int) -> "EngineClient":
        from swiftchat.engine.api.client import EngineClient
        from swiftchat.engine.api.params import EngineConfig

        if num_threads not in self.clients:
            config = EngineConfig(device="cpu", num_threads=num_threads, ctx_size_tokens=2048)
            self.clients[num_threads] = EngineClient(config, self.model).start()
            self.clients[num_threads].wait_ready()
        return self.clients[num_threads]

    def _run(
        self, client: "EngineClient", num_sequences: int, prompt_tokens: int, max_tokens: int
    ) -> "list[Finished]":
        from swiftchat.engine.api.params import SamplingParams
        from swiftchat.engine.api.protocol import Finished

        params = SamplingParams(temperature=0, max_tokens=max_tokens, speculate="off")
        generations = []
        for _ in range(num_sequences):
            self.num_prompts += 1  # the first token differs: no cached prefix is reused
            ids = [3 + (i * 104729 + self.num_prompts) % 30_000 for i in range(prompt_tokens)]
            generations.append(client.generate(ids, params))
        ends = [list(generation)[-1] for generation in generations]
        assert all(isinstance(end, Finished) for end in ends)
        return ends


@dataclass
class LlamaCpp:
    """llama.cpp's own benchmark programs on one GGUF file."""

    tools: Path
    gguf: Path

    def measure(self, case: Case) -> float:
        """Return tokens/s; the faster of flash attention on and off."""
        return max(self._measure(case, flash) for flash in ("0", "1"))

    def _measure(self, case: Case, flash: str) -> float:
        threads = str(case.num_threads)
        common = ["-m", str(self.gguf), "-t", threads]
        if case.num_sequences > 1:
            sizes = ["-npp", str(NUM_SHORT), "-ntg", str(NUM_DECODED), "-npl"]
            flash_option = ["-fa", "on" if flash == "1" else "off"]
            command = [self.tools / "llama-batched-bench", *common, *sizes]
            command += [str(case.num_sequences), "-c", "2048", *flash_option]
            output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            rows = [line.split("|") for line in output.splitlines() if re.match(r"\|\s+\d", line)]
            return float(rows[-1][8])
        counts = (NUM_PREFILLED, 0) if case.kind == "prefill" else (0, NUM_DECODED)
        command = [self.tools / "llama-bench", *common, "-p", str(counts[0]), "-n", str(counts[1])]
        command += ["-fa", flash, "-r", "1", "-o", "json"]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return float(json.loads(output)[0]["avg_ts"])


def _spin() -> None:
    while True:
        pass


@contextmanager
def busy_core() -> Iterator[None]:
    """Run a process that uses one core."""
    process = multiprocessing.get_context("spawn").Process(target=_spin, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def build_llama(folder: Path, *, avx2: bool) -> Path:
    """Build llama.cpp's tools in `folder` from the source package; return their folder."""
    download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:"]
    subprocess.run([*download, "-d", folder, f"llama-cpp-python=={LLAMA_VERSION}"], check=True)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    source = next(folder.glob("llama_cpp_python-*/vendor/llama.cpp"))
    off = "BUILD_SHARED_LIBS LLAMA_CURL LLAMA_OPENSSL LLAMA_BUILD_TESTS LLAMA_BUILD_EXAMPLES"
    on = "LLAMA_BUILD_COMMON LLAMA_BUILD_TOOLS GGML_OPENMP"
    if avx2:
        off, on = f"{off} GGML_NATIVE", f"{on} GGML_AVX GGML_AVX2 GGML_FMA GGML_F16C GGML_BMI2"
    options = [f"-D{name}=OFF" for name in off.split()] + [f"-D{name}=ON" for name in on.split()]
    build = folder / "build"
    subprocess.run(
        ["cmake", "-S", source, "-B", build, "-DCMAKE_BUILD_TYPE=Release", *options], check=True
    )
    jobs = str(os.cpu_count() or 1)
    subprocess.run(["cmake", "--build", build, "-j", jobs, "--target", *LLAMA_TOOLS], check=True)
    return build / "bin"


def requantized(tools: Path, source: Path, types: list[str], folder: Path) -> list[Path]:
    """Write `source` in each of the types; return the files."""
    files = [folder / f"{source.stem.split('.')[0]}.{name}.gguf" for name in types]
    for file, name in zip(files, types, strict=True):
        command = [tools / "llama-quantize", "--allow-requantize", source, file, name]
        subprocess.run(command, check=True, capture_output=True)
    return files


def cases(num_threads: int) -> list[Case]:
    return [
        Case("prefill 512", "prefill", num_threads),
        Case("decode", "decode", num_threads),
        Case("decode, 1 thread", "decode", 1),
        Case(f"decode, {NUM_SEQUENCES} sequences", "decode", num_threads, NUM_SEQUENCES),
        Case("decode, one core busy", "decode", num_threads, is_disturbed=True),
    ]


def run(
    programs: dict[str, Callable[[Case], float]], num_threads: int, rounds: int
) -> dict[str, dict[str, list[float]]]:
    """Return the rates of each program by case; a first round warms up."""
    rates: dict[str, dict[str, list[float]]] = {}
    for round_number in range(rounds + 1):
        for case in cases(num_threads):
            for name, measure in programs.items():
                if case.is_disturbed:
                    with busy_core():
                        rate = measure(case)
                else:
                    rate = measure(case)
                if round_number:
                    rates.setdefault(case.name, {}).setdefault(name, []).append(rate)
    return rates


def report(gguf: Path, rates: dict[str, dict[str, list[float]]]) -> None:
    print(f"\n{gguf.stem}\n{'tok/s, median (range)':24} {'swiftchat':>20} {'llama.cpp':>20}  ratio")
    for case, by_program in rates.items():
        medians = {name: statistics.median(values) for name, values in by_program.items()}
        cells = [
            f"{medians[name]:.0f} ({min(values):.0f}–{max(values):.0f})"
            for name, values in by_program.items()
        ]
        ratio = medians["swiftchat"] / medians["llama.cpp"]
        print(f"{case:24} {cells[0]:>20} {cells[1]:>20}  {ratio:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gguf", type=Path, nargs="+")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--avx2", action="store_true")
    parser.add_argument("--llama", type=Path)
    parser.add_argument("--quantize", nargs="+", default=[])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    from swiftchat.chat.model.find import find_model

    if args.avx2:
        os.environ.update(AVX2_LIMITS)
    results = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        tools = args.llama or build_llama(folder, avx2=args.avx2)
        files = args.gguf
        if args.quantize:
            files = requantized(tools, args.gguf[0], args.quantize, folder)
        print(f"{platform.processor() or platform.machine()}, {args.threads} threads", flush=True)
        for gguf in files:
            ours = Swiftchat(find_model(str(gguf), offline=True, quiet=True))
            programs = {"swiftchat": ours.measure, "llama.cpp": LlamaCpp(tools, gguf).measure}
            results[gguf.stem] = run(programs, args.threads, args.rounds)
            for client in ours.clients.values():
                client.close()
            report(gguf, results[gguf.stem])
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
