"""Which known models fit a device, in which order; the bandwidth of devices."""

import json
from pathlib import Path

import pytest

from swiftchat.chat.model import bandwidth
from swiftchat.chat.model.fit import Fit, fits, form_fits, room_bytes
from swiftchat.chat.model.memory import DeviceMemory
from swiftchat.weights.hub.known_models import known_models

GB = 10**9


def device(free_gb: float, name: str = "CPU") -> DeviceMemory:
    return DeviceMemory(name, 2 * int(free_gb * GB), int(free_gb * GB))


def test_models_that_fit_and_are_quick_come_first() -> None:
    found = fits([device(16)], 60 * GB)
    assert {fit.model.name for fit in found} == set(known_models())
    assert [fit.name for fit in found] == [fit.model.name for fit in found]
    groups = [(bool(fit.missing_bytes), not fit.is_quick) for fit in found]
    assert groups == sorted(groups) and {(False, False), (False, True), (True, True)} <= {*groups}
    first, *_, last = found
    assert first.memory_bytes <= room_bytes(device(16)) < last.memory_bytes
    assert last.missing_bytes == last.memory_bytes - room_bytes(device(16))


def test_the_newer_of_equal_models_and_the_larger_of_a_family_come_first() -> None:
    names = [fit.name for fit in fits([device(1000)], 5000 * GB)]
    for better, worse in (
        ("qwen3.8:27b", "qwen3.5:27b"),
        ("qwen3:14b", "qwen3:8b"),
        ("llama3.3:70b", "llama3.1:70b"),
        ("qwen3:32b", "qwen3:30b-a3b"),
        ("gpt2:xl", "gpt2"),
    ):
        assert names.index(better) < names.index(worse)


def test_memory_and_speed_of_a_form() -> None:
    small, *_ = form_fits([device(8)], 50 * GB, "QWEN3:8B")
    model = known_models()["qwen3:8b"]
    assert small.memory_bytes == model.forms[0].size_bytes + 8192 * 147_456
    assert small.tokens_per_s == pytest.approx(0.7 * 50 / (8.19 * 4.9 / 8), rel=0.01)
    assert small.verdict == "~7.0 tokens/s" and small.name == "qwen3:8b"
    *_, large = form_fits([device(8)], None, "qwen3:8b")
    assert large.name == "qwen3:8b-16bit" and large.tokens_per_s is None
    assert large.verdict == "needs 10.8 GB more"
    (expert, *_) = form_fits([device(80)], None, "qwen3:30b")
    assert expert.form.bytes_per_token < expert.form.size_bytes / 8 and expert.verdict == "fits"
    on_cpu, on_gpu = (
        form_fits([device(80, name)], 50 * GB, "oss:20b")[0] for name in ("CPU", "H200")
    )
    assert on_cpu == on_gpu  # MXFP4 stays packed on both
    (short, *_) = form_fits([device(8)], None, "tinyllama")  # a context of 2048 tokens
    assert short.memory_bytes == short.form.size_bytes + 2048 * 22_528


def test_several_gpus_count_as_the_engine_would_take_them() -> None:
    """The fewest of the first ones, of which the fullest decides."""

    def of_8_bits(*free_gb: float, bytes_per_s: float | None = None) -> Fit:
        return form_fits([*map(device, free_gb)], bytes_per_s, "qwen3:8b")[1]

    assert of_8_bits(12, 1).num_devices == 1 and of_8_bits(10, 80).num_devices == 2
    two = of_8_bits(7, 7, 7, 7, bytes_per_s=1000 * GB)
    assert (two.num_devices, two.missing_bytes) == (2, 0)
    assert two.tokens_per_s == pytest.approx(2 * 0.7 * 1000 / (8.19 * 8.5 / 8), rel=0.01)
    assert two.verdict.endswith(" tokens/s, --tp 2")
    assert of_8_bits(7, 4, 7, 7).verdict == "fits, --tp 4"
    none = of_8_bits(3, 3, 3)  # 3 ranks divide few models
    assert none.missing_bytes == none.memory_bytes - 2 * room_bytes(device(3))


@pytest.mark.parametrize(
    ("name", "gb_per_s"),
    [
        ("NVIDIA GeForce RTX 4060 Ti", 288),
        ("NVIDIA GeForce RTX 4060 Laptop GPU", 272),
        ("NVIDIA H100 80GB HBM3", 3350),
        ("NVIDIA H100 PCIe", 2000),
        ("NVIDIA A100-SXM4-80GB", 2039),
        ("NVIDIA A100-SXM4-40GB", 1555),
        ("Tesla T4", 320),
        ("NVIDIA H2000", None),
    ],
)
def test_the_bandwidth_of_a_gpu_is_known_by_its_name(name: str, gb_per_s: int | None) -> None:
    found = bandwidth.bandwidth_bytes_per_s(device(1, f"GPU 0 ({name})"))
    assert found == (None if gb_per_s is None else gb_per_s * 1e9)


def test_the_bandwidth_of_the_cpu_is_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bandwidth, "_MEASURED_BYTES", 1 << 16)
    measured = bandwidth.bandwidth_bytes_per_s(device(1))
    assert measured is not None and measured > 1e7

    def other(num_threads: int) -> float:
        return 12.5e9

    (kept,) = (tmp_path / "xdg" / "cache" / "swiftchat").glob("bandwidth.json*")
    monkeypatch.setattr(bandwidth, "_measured_bytes_per_s", other)
    for text, expected in (
        (json.dumps(dict.fromkeys(json.loads(kept.read_text()), 3e9)), 3e9),
        ("{}", 12.5e9),  # of another machine
        ('{"1": "x"', 12.5e9),
        (json.dumps(dict.fromkeys(json.loads(kept.read_text()), None)), 12.5e9),
    ):
        kept.write_text(text)
        assert bandwidth.bandwidth_bytes_per_s(device(1)) == expected
    assert list(json.loads(kept.read_text()).values()) == [12.5e9]
