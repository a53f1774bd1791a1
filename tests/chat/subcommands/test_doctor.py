"""`swiftchat doctor`: the report of this machine and the checks of simulated machines."""

import copy
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import platformdirs
import pytest
from click.testing import CliRunner, Result

from swiftchat.chat.subcommands import doctor as command
from swiftchat.cuda import nvrtc
from swiftchat.engine.cpu.features import Feature, instruction_sets
from swiftchat.engine.doctor import diagnosis, interconnect
from swiftchat.engine.doctor import report as doctor
from swiftchat.errors import DeviceError, UsageError
from swiftchat.weights.hub.known_models import known_models

GPU = {
    "index": 0,
    "name": "NVIDIA H200",
    "capability": "9.0",
    "architecture": "sm_90a",
    "multiprocessors": 132,
    "memory_bytes": 150 * 10**9,
    "free_bytes": 149 * 10**9,
    "has_kernels": True,
    "error": None,
    "kernel_error": None,
}
HEALTHY: dict[str, Any] = {
    "program": {"swiftchat": "0.1.0", "python": "3.12.1", "system": "Linux"},
    "cpu": {
        "cores": 16,
        "threads": 16,
        "instructions": "AVX512",
        "memory_bytes": 10**11,
        "free_bytes": 10**11,
    },
    "cpu_kernels": {
        "variant": "avx2",
        "reason": "the processor has AVX2",
        "features": "AVX2",
        "instruction_sets": instruction_sets(Feature.AVX2),
        "threads": 8,
        "error": None,
        "hint": None,
    },
    "torch": {"version": "2.11.0+cu130", "cuda": "13.0", "error": None},
    "driver": {"cuda": "13.0", "number": "580.159.04", "has_bindings": True, "error": None},
    "compiler": {
        "nvrtc": "13.0",
        "headers": "/include",
        "error": None,
        "architectures": ["sm_80", "sm_90a"],
    },
    "compile": {"kernel": "norm", "architecture": "sm_90a", "seconds": 0.1, "error": None},
    "cubin_cache": {"folder": "/cache", "entries": 3, "bytes": 10**6},
    "gpus": [GPU],
    "peer_access": [[True]],
    "links": [],
    "all_reduce": None,
    "can_chat": True,
    "usable_gpus": [0],
}


def machine(*path: str, **changes: Any) -> dict[str, Any]:
    """Return the report of a healthy machine with `changes` at `path`."""
    facts = copy.deepcopy(HEALTHY)
    part = facts
    for name in path:
        part = part[name]
    part.update(changes)
    return facts


def check_named(facts: dict[str, Any], name: str) -> diagnosis.Check:
    (check,) = [check for check in diagnosis.diagnose(facts) if check.name == name]
    return check


def run(monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any], *args: str) -> Result:
    checks = [vars(check) for check in diagnosis.diagnose(facts)]
    monkeypatch.setattr(command, "run_checks", lambda: {**facts, "checks": checks})
    return CliRunner().invoke(command.doctor, args)


@pytest.fixture
def fresh_compiler():
    """Clear the cached results about the compiler, before and after the test."""
    functions = (nvrtc.version, nvrtc.header_folders, nvrtc._nvrtc)
    for function in functions:
        function.cache_clear()
    yield
    for function in functions:
        function.cache_clear()


def test_a_healthy_machine_passes_all_checks() -> None:
    checks = diagnosis.diagnose(HEALTHY)
    assert {check.state for check in checks} == {"ok"}
    assert not any(check.hint for check in checks)
    assert "149.0 of 150.0 GB free" in check_named(HEALTHY, "GPU 0").text


@pytest.mark.parametrize(
    ("facts", "name", "state", "words", "hint"),
    [
        (
            machine("cpu_kernels"),
            "CPU kernels",
            "ok",
            "avx2: the processor has AVX2; 8 threads by default",
            "",
        ),
        (
            machine("cpu_kernels", threads=1),
            "CPU kernels",
            "ok",
            "AVX2; 1 thread by default",
            "",
        ),
        (
            machine("cpu_kernels", variant=None, reason="the processor lacks AVX2"),
            "CPU kernels",
            "note",
            "none: the processor lacks AVX2",
            "several times as long",
        ),
        (
            machine("cpu_kernels", error="unknown value 'sse9'", hint="use one of auto, off"),
            "CPU kernels",
            "problem",
            "unknown value 'sse9'",
            "use one of auto, off",
        ),
        (machine("torch", cuda=None), "torch", "problem", "without CUDA", "CUDA build"),
        (machine("torch", error="no libc"), "torch", "problem", "no libc", "pip install"),
        (machine("torch", cuda="14.1"), "torch", "problem", "the driver's 13.0", "newer"),
        (
            machine("driver", cuda="12.4", number="550.54.14"),
            "driver",
            "problem",
            "too old for kernels compiled by NVRTC 13.0",
            "580 or newer (found: 550.54.14)",
        ),
        (
            machine("driver", cuda="12.4", number=None),
            "driver",
            "problem",
            "too old",
            "580 or newer (found: one for CUDA 12.4)",
        ),
        (machine("driver", cuda="13.2"), "driver", "ok", "CUDA 13.2, NVIDIA 580.159.04", ""),
        (
            machine("driver", cuda=None, number=None, error="no libcuda"),
            "driver",
            "problem",
            "not found (no libcuda)",
            "--device cpu",
        ),
        (
            machine("driver", cuda=None, error="busy"),
            "driver",
            "problem",
            "580.159.04, but it",
            "--device cpu",
        ),
        (
            machine("driver", cuda=None, has_bindings=False),
            "driver",
            "problem",
            "cuda-python",
            "swiftchat[cuda]",
        ),
        (
            machine("compiler", error="no headers"),
            "compiler",
            "problem",
            "no headers",
            "swiftchat[cuda]",
        ),
        (machine("compile", error="error: x"), "compiling", "problem", "error: x", "reinstall"),
        (machine(gpus=[]), "GPU", "problem", "torch finds no GPU", "--device cpu"),
        (
            machine(
                gpus=[{**GPU, "has_kernels": False, "capability": "7.5", "architecture": "sm_75"}]
            ),
            "GPU 0",
            "note",
            "sm_75",
            "compute capability 8.0",
        ),
        (
            machine(gpus=[{**GPU, "architecture": "sm_103"}]),
            "GPU 0",
            "note",
            "sm_103",
            "not tuned",
        ),
        (
            machine(gpus=[{**GPU, "error": "in use", "free_bytes": None}]),
            "GPU 0",
            "problem",
            "in use",
            "nvidia-smi",
        ),
        (
            machine(gpus=[{**GPU, "kernel_error": "refused"}]),
            "GPU 0",
            "problem",
            "did not run: refused",
            "driver",
        ),
    ],
)
def test_each_problem_has_a_hint(
    facts: dict[str, Any], name: str, state: str, words: str, hint: str
) -> None:
    check = check_named(facts, name)
    assert check.state == state and words in check.text and hint in check.hint
    assert bool(check.hint) == (state != "ok")


def test_a_machine_without_a_gpu_has_one_row_about_gpus(monkeypatch) -> None:
    facts = machine("driver", cuda=None, number=None, error="no libcuda")
    facts |= {"gpus": [], "usable_gpus": []}
    facts["torch"]["cuda"] = None
    states = {check.name: check.state for check in diagnosis.diagnose(facts)}
    names = ["swiftchat", "CPU", "CPU kernels", "instructions", "torch", "GPU"]
    assert list(states) == names and states.pop("GPU") == "note"
    assert set(states.values()) == {"ok"}
    shown = run(monkeypatch, facts).stdout
    assert "GPU           none was found: models run on the CPU" in shown


def test_doctor_names_the_best_models_that_fit(monkeypatch) -> None:
    (row,) = [
        check
        for check in json.loads(run(monkeypatch, HEALTHY, "--json").stdout)["checks"]
        if check["name"] == "models"
    ]
    best, *others = row["text"].splitlines()[1:-1]
    assert known_models().keys() >= {line.partition(" ")[0] for line in (best, *others)}
    assert len(others) == 2 and " GB" in best


def test_instruction_sets_tell_what_they_speed_up() -> None:
    rows = check_named(HEALTHY, "instructions").text.split("\n")
    assert rows[0].split()[:2] == ["yes", "AVX2"] and rows[3].split()[:2] == ["no", "AVX512-VNNI"]
    assert "quantized weights" in rows[1] and "quantized weights" in rows[3]
    (row, _) = instruction_sets(Feature.DOTPROD)
    assert row["found"] and row["name"] == "dot products"


def test_peer_access_matrix() -> None:
    assert check_named(machine(peer_access=[[True] * 2] * 2), "peer access").state == "ok"
    check = check_named(machine(peer_access=[[True, False], [True, True]]), "peer access")
    assert check.state == "note"
    rows = [line.split()[1:] for line in check.text.split("\n")]
    assert rows == [["0", "1"], ["+", "-"], ["+", "+"]]
    head, first, second, hint = command.table([vars(check)]).split("\n")
    assert head.index("0") == first.index("+") == second.index("+") and "hint: " in hint
    assert head.index("1") == first.index("-") == second.rindex("+")


TOPOLOGY = """\
\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tNODE\t0-15\t0\t\tN/A
GPU1\tNV18\t X \tSYS\t16-31\t1\t\tN/A
NIC0\tNODE\tSYS\t X 

Legend:
"""  # noqa: W291  (output of nvidia-smi)


def test_links_between_gpus() -> None:
    names = interconnect.parse_topology(TOPOLOGY, 2)
    assert names == [["X", "NV18"], ["NV18", "X"]]
    assert interconnect.parse_topology(TOPOLOGY, 1) == []  # more GPUs than torch sees
    check = check_named(machine(peer_access=[[True] * 2] * 2, links=names), "peer access")
    assert [line.split() for line in check.text.split("\n")[1:]] == [
        ["0", "X", "NV18"],
        ["1", "NV18", "X"],
    ]


@pytest.mark.parametrize(
    ("count", "measured", "state", "words"),
    [
        (0, None, "ok", "found 0"),
        (1, None, "ok", "found 1"),
        (2, None, "note", "NCCL"),
        (2, {"us": 3.91, "error": None}, "ok", "8 KiB on 2 GPUs in 3.9 µs"),
        (2, {"us": None, "error": "GPU 1 hangs"}, "problem", "GPU 1 hangs"),
    ],
)
def test_all_reduce_check(count: int, measured: Any, state: str, words: str) -> None:
    sizes = {"gpus": 2, "bytes": 8192}
    facts = machine(gpus=[GPU] * count, all_reduce=measured and {**sizes, **measured})
    check = check_named(facts, "all-reduce")
    assert check.state == state and words in check.text


def test_measuring_without_gpus_returns_an_error() -> None:
    assert "GPU 0: status 1" in interconnect.measure(1)["error"]


def test_a_hanging_measurement_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("import signal\nsignal.pause()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    began = time.monotonic()
    assert interconnect.measure(1, limit_s=0.05)["error"] == "GPU 0 was not ready after 0 s"
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    ("args", "usable", "code"),
    [
        ((), [], 0),
        (("--device", "cpu"), [], 0),
        (("--device", "cuda"), [], 4),
        (("--device", "cuda"), [1], 0),
        (("--device", "cuda:0"), [1], 4),
        (("--device", "cuda:1"), [1], 0),
        (("--device", "cuda:1", "--json"), [0], 4),
    ],
)
def test_exit_codes(monkeypatch, args: tuple[str, ...], usable: list[int], code: int) -> None:
    assert run(monkeypatch, machine(usable_gpus=usable), *args).exit_code == code


def test_the_first_line_lists_the_usable_devices(monkeypatch) -> None:
    first = run(monkeypatch, HEALTHY).stdout.splitlines()[0]
    assert first == "A chat can run on: cuda:0, cpu"
    first = run(monkeypatch, HEALTHY, "--device", "cuda:3").stdout.splitlines()[0]
    assert first == "cuda:3 is not usable. A chat can run on: cuda:0, cpu"
    first = run(monkeypatch, machine(usable_gpus=[])).stdout.splitlines()[0]
    assert first == "A chat can run on: cpu"
    result = run(monkeypatch, machine(can_chat=False, usable_gpus=[]))
    assert result.exit_code == 4 and result.stdout.startswith("No device can run a chat.\n")


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "cpu:1", "cuda:-1"])
def test_an_unknown_device_is_a_usage_error(monkeypatch, device: str) -> None:
    assert isinstance(run(monkeypatch, HEALTHY, "--device", device).exception, UsageError)


def test_marks_and_names_are_aligned(monkeypatch) -> None:
    facts = machine("compiler", error="no headers\x1b[31m")
    lines = run(monkeypatch, facts).stdout.splitlines()
    (row,) = [i for i, line in enumerate(lines) if "no headers" in line]
    assert lines[row].startswith("!!  compiler ") and "\x1b" not in lines[row]
    assert lines[row + 1].index("hint: ") == lines[row].index("NVRTC 13.0")
    assert all(line[:4] in ("ok  ", "!!  ", "--  ", "    ") for line in lines[2:])


def test_report_without_cuda_python(monkeypatch, fresh_compiler) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    report = doctor.report()
    assert report["can_chat"] and not report["driver"]["has_bindings"]
    assert report["compiler"]["nvrtc"] is None and report["compile"]["seconds"] is None
    (driver,) = [
        check
        for check in diagnosis.diagnose({**report, "gpus": HEALTHY["gpus"]})
        if check.name == "driver"
    ]
    assert driver.hint == "pip install 'swiftchat[cuda]'"


def test_report_without_cuda_headers(monkeypatch, fresh_compiler) -> None:
    monkeypatch.setattr(Path, "exists", lambda path: False)
    compiler = doctor.report()["compiler"]
    assert compiler["nvrtc"] is not None and "headers" in compiler["error"]


def test_report_without_torch(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    report = doctor.report()
    assert not report["can_chat"] and report["usable_gpus"] == [] and report["cpu"]["cores"] > 0


def test_driver_version_of_the_kernel_module(monkeypatch, tmp_path: Path) -> None:
    file = tmp_path / "version"
    for kind in ("x86_64 Kernel Module", "Open Kernel Module for x86_64"):
        file.write_text(
            f"NVRM version: NVIDIA UNIX {kind}  580.159.04  Release\nGCC version:  gcc 13.3.0\n"
        )
        monkeypatch.setattr(doctor, "_NVIDIA_KERNEL_DRIVER", file)
        assert doctor._driver()["number"] == "580.159.04"


def test_cubin_cache_statistics() -> None:
    folder = platformdirs.user_cache_path("swiftchat") / "cubins"
    folder.mkdir(parents=True)
    (folder / "norm-sm_90a-0.cubin").write_bytes(b"x" * 100)
    assert doctor._cubin_cache() == {"folder": str(folder), "entries": 1, "bytes": 100}


def test_doctor_as_a_process() -> None:
    command = [sys.executable, "-m", "swiftchat.chat", "doctor", "--json"]
    report = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert report["can_chat"] and report["compile"]["seconds"] > 0
    assert report["compiler"]["architectures"] == list(nvrtc.ARCHITECTURES)
    assert {"swiftchat", "CPU", "torch", "models"} <= {c["name"] for c in report["checks"]}


@pytest.mark.parametrize(
    "script", ["import os; os.kill(os.getpid(), 11)", "raise OSError('broken')"]
)
def test_a_crash_of_the_checks_is_reported(monkeypatch, script: str) -> None:
    run, crashing = subprocess.run, [sys.executable, "-c", script]
    monkeypatch.setattr(subprocess, "run", lambda command, **settings: run(crashing, **settings))
    with pytest.raises(DeviceError, match=r"SIGSEGV|broken"):
        command.run_checks()


@pytest.mark.gpus(2)
def test_all_reduce_of_two_gpus() -> None:
    measured = interconnect.measure(2)
    assert measured["error"] is None and 1 < measured["us"] < 100


@pytest.mark.gpu
def test_report_with_a_gpu() -> None:
    report = doctor.report()
    gpu = report["gpus"][0]
    assert gpu["error"] is None and gpu["kernel_error"] is None and 0 in report["usable_gpus"]
    states = {check["name"]: check["state"] for check in report["checks"]}
    assert states["torch"] == states["driver"] == states["GPU 0"] == "ok"
