"""One GPU and the kernels compiled for it."""

import ctypes
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from swiftchat.cuda.cubin_cache import CubinCache
from swiftchat.cuda.nvrtc import OLDEST_CAPABILITY, architecture
from swiftchat.errors import DeviceError, OutOfMemory

DTYPE_NAMES = {torch.bfloat16: "__nv_bfloat16", torch.float16: "__half", torch.float32: "float"}
_CTYPES = {
    "p": ctypes.c_void_p,
    "i": ctypes.c_int32,
    "l": ctypes.c_int64,
    "f": ctypes.c_float,
    "m": None,  # a structure of the driver's
}

Dims = int | tuple[int, int] | tuple[int, int, int]


@dataclass(frozen=True)
class KernelSpec:
    """What `kernels/NAME.cu` is compiled with.

    Its entry point is `NAME_kernel`; `params` has a letter for each parameter: p a pointer, i an
    int32, l an int64, f an fp32 number, m a `tensor_map`. `defines` are macros.
    """

    name: str
    params: str
    defines: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        return self.name, tuple(sorted(self.defines.items()))


@dataclass(frozen=True)
class Launch:
    """A recorded launch: of what, how many bytes it had to move at least, and how to repeat it."""

    spec: KernelSpec
    num_bytes: int
    again: Callable[[], None]


class Gpu:
    """One device: its numbers, its kernels, and their launches on torch's current stream.

    Raises `DeviceError` for a GPU older than sm_80. With `launches` set to a list, every launch
    is appended to it.
    """

    def __init__(self, device: torch.device, cache: CubinCache) -> None:
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
        self.compile_s = 0.0  # spent compiling, or reading what was compiled before
        self._cache = cache
        self._cubins: dict[Any, bytes] = {}
        self._kernels: dict[Any, Kernel] = {}
        self._collected: list[KernelSpec] | None = None

    def compile(
        self,
        specs: Iterable[KernelSpec],
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """Compile the kernels on all cores; those in the disk cache are only read."""
        started = time.perf_counter()
        wanted = {spec.key: spec for spec in specs if spec.key not in self._cubins}
        with ThreadPoolExecutor() as pool:
            jobs = {
                key: pool.submit(self._cache.get, spec.name, self.arch, spec.defines)
                for key, spec in wanted.items()
            }
            for done, (key, job) in enumerate(jobs.items(), 1):
                self._cubins[key] = job.result()
                on_progress(done, len(jobs))
        self.compile_s += time.perf_counter() - started

    @contextmanager
    def collecting(self) -> Iterator[list[KernelSpec]]:
        """Within, kernels are not launched, only listed: to compile them together."""
        self._collected = []
        try:
            yield self._collected
        finally:
            self._collected = None

    def kernel(self, spec: KernelSpec) -> "Kernel | Callable[..., None]":
        """The loaded kernel, compiled first if it has to be."""
        if self._collected is not None:
            self._collected.append(spec)
            return lambda *args, **options: None
        kernel = self._kernels.get(spec.key)
        if kernel is None:
            self.compile([spec])
            kernel = self._kernels[spec.key] = Kernel(self, spec, self._cubins[spec.key])
        return kernel


class Kernel:
    """A kernel on the GPU, ready to be launched."""

    def __init__(self, gpu: Gpu, spec: KernelSpec, cubin: bytes) -> None:
        driver = cuda_driver()
        self._gpu = gpu
        self._spec = spec
        self._types = tuple(_CTYPES[letter] for letter in spec.params)
        self._module = check(driver.cuModuleLoadData(cubin))
        entry = f"{spec.name}_kernel".encode()
        self._function = check(driver.cuModuleGetFunction(self._module, entry))
        # The same split of L1 and shared memory for all: a multiprocessor must run empty before
        # it can change it, and then no kernel's blocks could come in beside their predecessor's.
        carveout = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
        check(driver.cuFuncSetAttribute(self._function, carveout, 100))
        # Above this much, static and dynamic together, a kernel has to ask.
        self._shared_limit = 48 * 1024 - self.attribute("SHARED_SIZE_BYTES")

    def __call__(
        self, grid: Dims, block: int, *args: Any, shared_bytes: int = 0, num_bytes: int = 0
    ) -> None:
        """Launch on torch's current stream: `grid` blocks of `block` threads.

        Arguments are numbers, tensors (passed as pointers), None (a null pointer) and tensor maps.
        `num_bytes` is what the launch
        must move at least. The kernel may start before its predecessor on the stream has
        ended, and waits itself before it touches what that wrote (dependent launch, sm_90+).
        """
        if len(args) != len(self._types):
            raise TypeError(f"{self._spec.name}: {len(args)} arguments, not {len(self._types)}")
        driver = cuda_driver()
        if shared_bytes > self._shared_limit:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(driver.cuFuncSetAttribute(self._function, attribute, shared_bytes))
            self._shared_limit = shared_bytes
        config = driver.CUlaunchConfig()
        x, y, z = (grid, 1, 1) if isinstance(grid, int) else (*grid, 1)[:3]
        config.gridDimX, config.gridDimY, config.gridDimZ = x, y, z
        config.blockDimX, config.blockDimY, config.blockDimZ = block, 1, 1
        config.sharedMemBytes = shared_bytes
        config.hStream = torch.cuda.current_stream(self._gpu.device).cuda_stream
        if self._gpu.has_dependent_launch:
            config.attrs, config.numAttrs = [_dependent()], 1
        values = tuple(arg.data_ptr() if isinstance(arg, Tensor) else (arg or 0) for arg in args)
        check(driver.cuLaunchKernelEx(config, self._function, (values, self._types), 0))
        if self._gpu.launches is not None:
            again = partial(self, grid, block, *args, shared_bytes=shared_bytes)
            self._gpu.launches.append(Launch(self._spec, num_bytes, again))

    def attribute(self, name: str) -> int:
        """A number of the compiled kernel: NUM_REGS, LOCAL_SIZE_BYTES, SHARED_SIZE_BYTES, …"""
        driver = cuda_driver()
        which = getattr(driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        return int(check(driver.cuFuncGetAttribute(which, self._function)))


def check(result: Any) -> Any:
    """The values of a driver call's (status, *values); a failed status is a `DeviceError`."""
    status, *values = result
    if int(status) != 0:
        driver = cuda_driver()
        kind = OutOfMemory if status == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY else DeviceError
        raise kind(f"the CUDA driver refused: {status.name}", "swiftchat doctor looks closer")
    return values[0] if len(values) == 1 else tuple(values)


def cuda_driver() -> Any:  # it has no stubs
    """The CUDA driver's functions; `DeviceError` where the bindings are missing."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise DeviceError(
            f"cuda-python is missing: {error}", "pip install 'swiftchat[cuda]'"
        ) from error
    return driver


def _dependent() -> Any:
    driver = cuda_driver()
    value = driver.CUlaunchAttributeValue()
    value.programmaticStreamSerializationAllowed = 1
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value = value
    return attribute
