"""Selection of the device, its name and its free memory."""

import psutil
import torch

from swiftchat.engine.device.gpu_driver import why_unusable
from swiftchat.errors import DeviceError, OutOfMemory, UsageError


def find_device(name: str, rank: int = 0) -> torch.device:
    """Return the torch device for `auto`, `cpu`, `cuda` or `cuda:i`.

    Rank r uses the r-th GPU after that one; on the CPU all ranks use the same device. Raises
    `UsageError` for an unknown name and `DeviceError` for a missing GPU.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"unknown device {name!r}", "one of auto, cpu, cuda, cuda:0 …") from None
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", 0)
    if device.type == "cuda" and rank:
        device = torch.device("cuda", (device.index or 0) + rank)
    if device.type == "cuda" and device.index >= torch.cuda.device_count():
        found = torch.cuda.device_count()
        why = why_unusable(torch.version.cuda)
        raise DeviceError(
            f"no GPU for --device {name}: torch {torch.__version__} finds {found}"
            + ("" if why is None else f"; {why}"),
            "use --device cpu, or install the driver and torch's CUDA build",
        )
    return device


def cpu_note(name: str, device: torch.device) -> str:
    """Return why `auto` has chosen the CPU of a machine with a GPU's driver; empty otherwise."""
    why = why_unusable(torch.version.cuda) if name == "auto" and device.type == "cpu" else None
    return "" if why is None else f"the CPU computes: {why}"


def device_error(error: BaseException, hint: str = "") -> DeviceError:
    """Convert an exception of torch to `OutOfMemory`, or to `DeviceError` for any other cause."""
    lines = str(error).strip().splitlines()
    kind = OutOfMemory if _is_out_of_memory(error) else DeviceError
    return kind(lines[0] if lines else repr(error), hint)


def _is_out_of_memory(error: BaseException) -> bool:
    # Only torch's GPU allocator has an exception of its own; others raise RuntimeError.
    texts = ("DefaultCPUAllocator", "CUBLAS_STATUS_ALLOC_FAILED", "CUDA error: out of memory")
    known = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return known or any(text in str(error) for text in texts)


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def describe_device(device: torch.device, computed_by: str, is_dequantized: bool) -> str:
    """Return the device's name, with notes on what computes and on dequantized weights."""
    words = [device_name(device), *([computed_by] if computed_by else [])]
    if is_dequantized:
        words.append("weights dequantized")
    return ", ".join(words)


def available_bytes(device: torch.device, num_local_ranks: int = 1) -> int:
    """Memory that can be allocated now without swapping; ranks of one machine divide the CPU's."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return int(psutil.virtual_memory().available) // num_local_ranks
