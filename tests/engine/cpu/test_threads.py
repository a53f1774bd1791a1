"""The default number of threads: cores, affinity and quotas of control groups."""

import os
from pathlib import Path

import pytest

from swiftchat.engine.cpu.threads import default_threads, quota_cpus

V2 = "25 20 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
V1 = "32 31 0:29 {root} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct"
OTHER = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def v2(root: Path, group: str, quotas: dict[str, str]) -> Path:
    """Write a file system with a group of version 2 and `cpu.max` files."""
    files = {f"sys/fs/cgroup/{folder}/cpu.max": text for folder, text in quotas.items()}
    files |= {"proc/self/cgroup": f"0::{group}\n", "proc/self/mountinfo": f"{OTHER}\n{V2}\n"}
    return write(root, files)


def v1(root: Path, group: str, mount_root: str, quotas: dict[str, int]) -> Path:
    """Write a file system with a group of version 1 and quotas, in periods of 50 ms."""
    files = {
        "proc/self/cgroup": f"5:memory:/elsewhere\n4:cpu,cpuacct:{group}\n",
        "proc/self/mountinfo": f"{OTHER}\n{V1.format(root=mount_root)}\n",
    }
    for folder, quota in quotas.items():
        files[f"sys/fs/cgroup/cpu,cpuacct/{folder}/cpu.cfs_quota_us"] = f"{quota}\n"
        files[f"sys/fs/cgroup/cpu,cpuacct/{folder}/cpu.cfs_period_us"] = "50000\n"
    return write(root, files)


def test_without_control_groups(tmp_path: Path) -> None:
    assert quota_cpus(tmp_path) is None
    assert v2(tmp_path, "/", {"": "max 100000\n"}) and quota_cpus(tmp_path) is None


def test_the_lowest_quota_of_nested_groups_counts(tmp_path: Path) -> None:
    quotas = {"a/b/c": "max 100000", "a/b": "250000 100000", "a": "900000 100000"}
    assert quota_cpus(v2(tmp_path, "/a/b/c", quotas)) == 2.5


def test_group_of_the_host_in_a_container(tmp_path: Path) -> None:
    assert quota_cpus(v2(tmp_path / "a", "/../../pod", {".": "150000 100000"})) == 1.5
    docker = v1(tmp_path / "b", "/docker/abc", "/docker/abc", {".": 75000})
    assert quota_cpus(docker) == 1.5
    docker = v1(tmp_path / "c", "/docker/abc", "/", {".": -1, "docker": 200000, "docker/abc": -1})
    assert quota_cpus(docker) == 4


def test_threads_are_at_most_the_quota(tmp_path: Path) -> None:
    for quota, threads in ((0.5, 1), (1.9, 1), (10_000, len(cpus()))):
        root = v2(tmp_path, "/", {"": f"{round(quota * 100000)} 100000"})
        assert default_threads(root) == threads


def cpus() -> set[int]:
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("this system has no affinity mask")
    return os.sched_getaffinity(0)


def test_hardware_threads_of_one_core_count_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpus()
    topology = {0: "0,4", 1: "1,5", 4: "0,4", 5: "1,5", 6: "2,6"}
    folder = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    root = write(tmp_path, {folder.format(cpu): text for cpu, text in topology.items()})
    for allowed, cores in (((0, 1, 4, 5), 2), ((0, 4), 1), ((0, 1, 4, 5, 6), 3), ((4, 6), 2)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, allowed=allowed: set(allowed))
        assert default_threads(root) == cores
