"""One GPU and the kernels compiled for it."""

import ctypes
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

import torch

from swiftchat.cuda.cubin_cache import CubinCache
from swiftchat.cuda.nvrtc import OLDEST_CAPABILITY, architecture
from swiftchat.cuda.signature import KernelSpec, Macro
from swiftchat.errors import DeviceError, OutOfMemory

# The types of kernel arguments. The driver's bindings pass a tensor map by themselves.
_C_TYPES = {
    "pointer": ctypes.c_void_p,
    "int": ctypes.c_int32,
    "int64": ctypes.c_int64,
    "float": ctypes.c_float,
    "tensor_map": None,
}
_MAX_GRID_YZ = 65_535

Dims = int | tuple[int, int] | tuple[int, int, int]


@dataclass(frozen=True)
class Launch:
    """A recorded launch: its kernel, the bytes it has to move, and a function that repeats it."""

    spec: KernelSpec
    num_bytes: int
    repeat: Callable[[], None]


class Gpu:
    """One GPU: its properties, its kernels and their launches on torch's current stream.

    Raises `DeviceError` for a compute capability below 8.0. If `launches` is a list, every launch
    is appended to it.
    """

    def __init__(self, device: torch.device, cubins: CubinCache) -> None:
        properties = torch.cuda.get_device_properties(device)
        self.capability = (properties.major, properties.minor)
        if self.capability < OLDEST_CAPABILITY:
            raise DeviceError(
                f"{properties.name} has compute capability {properties.major}."
                f"{properties.minor}; the kernels need 8.0 or newer"
            )
        self.device = device
        self.arch = architecture(self.capability)
        self.num_sms: int = properties.multi_processor_count
        driver, index = cuda_driver(), device.index or 0
        limit = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        self.block_shared_bytes = int(check(driver.cuDeviceGetAttribute(limit, index)))
        limit = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
        self.sm_shared_bytes = int(check(driver.cuDeviceGetAttribute(limit, index)))
        self.has_dependent_launch = self.has_copy_engine = self.capability >= (9, 0)
        self.launches: list[Launch] | None = None
        self.compile_s = 0.0  # includes reading compiled kernels from the disk cache
        self._disk_cache = cubins
        self._cubins: dict[Any, bytes] = {}
        self._kernels: dict[Any, Kernel] = {}
        self._collected: list[KernelSpec] | None = None

    def compile(
        self,
        specs: Iterable[KernelSpec],
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """Compile kernels on all cores, or read them from the disk cache."""
        started = time.perf_counter()
        wanted = {spec.key: spec for spec in specs if spec.key not in self._cubins}
        with ThreadPoolExecutor() as pool:
            jobs = {
                key: pool.submit(self._disk_cache.get, spec.name, self.arch, spec.defines)
                for key, spec in wanted.items()
            }
            for done, (key, job) in enumerate(jobs.items(), 1):
                self._cubins[key] = job.result()
                on_progress(done, len(jobs))
        self.compile_s += time.perf_counter() - started

    @contextmanager
    def collecting(self) -> Iterator[list[KernelSpec]]:
        """List the kernels that are used inside the context instead of launching them.

        The caller can then compile all of them in parallel.
        """
        self._collected = []
        try:
            yield self._collected
        finally:
            self._collected = None

    def kernel(self, name: str, **defines: Macro) -> "Kernel | Callable[..., None]":
        """Return the loaded variant of a kernel with these macros; compile it first if necessary.

        Raises `ValueError` for a dtype without kernels.
        """
        if self._collected is not None:
            spec = KernelSpec.of(name, **defines)
            self._collected.append(spec)
            return partial(_check_only, spec, self.device)
        key = name, *defines.items()
        kernel = self._kernels.get(key)
        if kernel is None:
            spec = KernelSpec.of(name, **defines)
            self.compile([spec])
            kernel = self._kernels[key] = Kernel(self, spec, self._cubins[spec.key])
        return kernel

    def synchronize(self) -> None:
        """Wait until all that was launched has ended."""
        torch.cuda.synchronize(self.device)

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Launch the block's work on a second stream, after all that was launched before.

        It runs beside what is launched next, until `join`.
        """
        current = torch.cuda.current_stream(self.device)
        self._second_stream.wait_stream(current)
        with torch.cuda.stream(self._second_stream):
            yield

    def join(self) -> None:
        """Let the current stream wait for the work that was launched beside it."""
        torch.cuda.current_stream(self.device).wait_stream(self._second_stream)

    @cached_property
    def _second_stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]


def _check_only(
    spec: KernelSpec,
    device: torch.device,
    grid: Dims,
    block: int,
    /,
    *,
    shared_bytes: int = 0,
    num_bytes: int = 0,
    cluster: int = 1,
    **arguments: Any,
) -> None:
    """Check a launch's arguments without launching."""
    spec.signature.bind(arguments, device)


class Kernel:
    """A kernel loaded on the GPU."""

    def __init__(self, gpu: Gpu, spec: KernelSpec, cubin: bytes) -> None:
        driver = cuda_driver()
        self._gpu = gpu
        self._spec = spec
        self._signature = spec.signature
        self._types = tuple(_C_TYPES[kind] for kind in self._signature.kinds)
        self._module = check(driver.cuModuleLoadData(cubin))
        entry = f"{spec.name}_kernel".encode()
        self._function = check(driver.cuModuleGetFunction(self._module, entry))
        # All kernels use the same split of L1 and shared memory. A multiprocessor can only change
        # it while it is idle, so another split would prevent dependent launches from overlapping.
        carveout = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
        check(driver.cuFuncSetAttribute(self._function, carveout, 100))
        # A kernel must opt in to more shared memory than this, static and dynamic together.
        self._shared_limit = 48 * 1024 - self.attribute("SHARED_SIZE_BYTES")

    def __call__(
        self,
        grid: Dims,
        block: int,
        /,
        *,
        shared_bytes: int = 0,
        num_bytes: int = 0,
        cluster: int = 1,
        **arguments: Any,
    ) -> None:
        """Launch `grid` blocks of `block` threads on torch's current stream.

        Each `cluster` neighboring blocks share a processing cluster.

        `arguments` are those that the kernel's source declares: numbers, tensors (passed as
        pointers), None (a null pointer) and tensor maps; `Signature.bind` checks them. A grid
        without blocks is not launched. `num_bytes` is the least number of bytes that the launch has
        to move. On sm_90 and newer the kernel may start before its predecessor on the stream ends
        (dependent launch); it waits before it reads its predecessor's results.
        """
        values = self._signature.bind(arguments, self._gpu.device)
        x, y, z = (grid, 1, 1) if isinstance(grid, int) else (*grid, 1)[:3]
        if y > _MAX_GRID_YZ or z > _MAX_GRID_YZ:
            raise ValueError(f"{self._spec.name}: a grid of {grid} is larger than {_MAX_GRID_YZ}")
        if not (x and y and z):
            return
        driver = cuda_driver()
        if shared_bytes > self._shared_limit:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(driver.cuFuncSetAttribute(self._function, attribute, shared_bytes))
            self._shared_limit = shared_bytes
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = x, y, z
        config.blockDimX, config.blockDimY, config.blockDimZ = block, 1, 1
        config.sharedMemBytes = shared_bytes
        config.hStream = torch.cuda.current_stream(self._gpu.device).cuda_stream
        if self._gpu.has_dependent_launch:
            attributes = [_dependent_launch()] + ([_clusters_of(cluster)] if cluster > 1 else [])
            config.attrs, config.numAttrs = attributes, len(attributes)
        check(driver.cuLaunchKernelEx(config, self._function, (tuple(values), self._types), 0))
        if self._gpu.launches is not None:
            repeat = partial(
                self, grid, block, shared_bytes=shared_bytes, cluster=cluster, **arguments
            )
            self._gpu.launches.append(Launch(self._spec, num_bytes, repeat))

    def attribute(self, name: str) -> int:
        """Return an attribute of the compiled kernel: NUM_REGS, LOCAL_SIZE_BYTES, …"""
        driver = cuda_driver()
        which = getattr(driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        return int(check(driver.cuFuncGetAttribute(which, self._function)))


def check(result: Any) -> Any:
    """Return the values of a driver call's (status, *values).

    Raises `DeviceError`, or `OutOfMemory`, if the status is an error.
    """
    status, *values = result
    if int(status) != 0:
        driver = cuda_driver()
        kind = OutOfMemory if status == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY else DeviceError
        raise kind(
            f"a CUDA driver call failed: {status.name}", "run swiftchat doctor to find the cause"
        )
    return values[0] if len(values) == 1 else tuple(values)


@cache
def cuda_driver() -> Any:  # the bindings have no type stubs
    """Return the CUDA driver's bindings; raise `DeviceError` if they are not installed."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise DeviceError(
            f"cuda-python is not installed: {error}", "pip install 'swiftchat[cuda]'"
        ) from error
    return driver


# Launches copy their attributes. To make one takes the host as long as the rest of a launch.
@cache
def _dependent_launch() -> Any:
    """Return the launch attribute for programmatic dependent launch."""
    driver = cuda_driver()
    value = driver.CUlaunchAttributeValue()
    value.programmaticStreamSerializationAllowed = 1
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value = value
    return attribute


@cache
def _clusters_of(blocks: int) -> Any:
    """Return the launch attribute for clusters of neighboring blocks."""
    driver = cuda_driver()
    value = driver.CUlaunchAttributeValue()
    value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = blocks, 1, 1
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    attribute.value = value
    return attribute
