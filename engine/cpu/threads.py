"""How many threads compute on the CPU by default."""

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import psutil


def default_threads(root: Path = Path("/")) -> int:
    """Return the physical cores that the process may use, at most the quota of its control groups.

    Two hardware threads of a core share its arithmetic units, so one of them is enough. Of a quota
    that is not whole the rest is not used: beyond it the system stops all threads for a while.
    `root` is that of the file system.
    """
    threads = _physical_cores(root)
    quota = quota_cpus(root)
    if quota is not None:
        threads = min(threads, math.floor(quota))
    return max(1, threads)


def quota_cpus(root: Path = Path("/")) -> float | None:
    """Return the processor time per time that control groups allow; None: there is no limit.

    The limits of all groups above count, too. Versions 1 and 2 of Linux's control groups.
    """
    found = [quota for folder in _group_folders(root) if (quota := _quota(folder)) is not None]
    return min(found, default=None)


def _physical_cores(root: Path) -> int:
    if not hasattr(os, "sched_getaffinity"):
        return psutil.cpu_count(logical=False) or os.cpu_count() or 1
    allowed = os.sched_getaffinity(0)
    return len({_siblings(root, cpu) for cpu in allowed})


def _siblings(root: Path, cpu: int) -> str:
    """Return a name of the core that a hardware thread belongs to."""
    folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    return _read(folder / "core_cpus_list") or _read(folder / "thread_siblings_list") or str(cpu)


def _quota(folder: Path) -> float | None:
    """Return the limit of one group."""
    fields = _read(folder / "cpu.max").split()
    if not fields:
        files = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        fields = [_read(folder / name) for name in files]
    try:
        quota, period = (float(field) for field in fields)
    except ValueError:  # "max", or no such file
        return None
    return quota / period if quota > 0 and period > 0 else None


def _group_folders(root: Path) -> Iterator[Path]:
    """Yield the folders of the process's groups that limit processor time, and those above them."""
    groups: dict[str, PurePosixPath] = {}
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            groups["cgroup2"] = PurePosixPath(path)
        elif "cpu" in controllers.split(","):
            groups["cgroup"] = PurePosixPath(path)
    for line in _read(root / "proc/self/mountinfo").splitlines():
        fields, _, about_system = line.partition(" - ")
        file_system, _, options = about_system.split(" ", 2)
        if file_system == "cgroup2" or (file_system == "cgroup" and "cpu" in options.split(",")):
            mount_root, mount = fields.split()[3:5]
            folder = _folder(groups.get(file_system, PurePosixPath("/")), mount_root)
            for below in (folder, *folder.parents):
                yield root / mount.lstrip("/") / below


def _folder(group: PurePosixPath, mount_root: str) -> PurePosixPath:
    """Return a group's folder below the place where `mount_root` is mounted.

    In a container the group's path can be one of the host; then its folder is the place itself.
    """
    is_below = group.is_relative_to(mount_root) and ".." not in group.parts
    return group.relative_to(mount_root) if is_below else PurePosixPath()


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
