"""A variant of a kernel, and the arguments of its launches."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from swiftchat.cuda.declaration import DTYPES, REST, TensorType, declaration

DTYPE_NAMES = {torch.bfloat16: "__nv_bfloat16", torch.float16: "__half", torch.float32: "float"}
_ALIGNMENT_BYTES = 16  # of vector loads
Macro = str | int | torch.dtype  # a bool is 0 or 1


@dataclass(frozen=True)
class KernelSpec:
    """A kernel to compile: its name and its macros, as the compiler gets them.

    `kernels/FOLDER/NAME.cu` defines the entry point `NAME_kernel`.
    """

    name: str
    defines: Mapping[str, str]

    @classmethod
    def of(cls, name: str, **defines: Macro) -> "KernelSpec":
        """Return the variant with these macros; raise `ValueError` for a dtype without kernels."""
        return cls(name, {macro: _macro(name, value) for macro, value in defines.items()})

    @property
    def key(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        return self.name, tuple(sorted(self.defines.items()))

    @property
    def signature(self) -> "Signature":
        return _signature(*self.key)


def _macro(name: str, value: Macro) -> str:
    if isinstance(value, torch.dtype):
        if value not in DTYPE_NAMES:
            raise ValueError(f"{name}: tensors must be bf16, fp16 or fp32, not {value}")
        return DTYPE_NAMES[value]
    return value if isinstance(value, str) else str(int(value))


@cache
def _signature(name: str, defines: tuple[tuple[str, str], ...]) -> "Signature":
    return Signature(name, dict(defines))


class _Pointer(NamedTuple):
    """What the argument of a pointer must be.

    Dimensions of `sizes` with the same name are equal. `dtype` is None for any, that of the dtype's
    name in the table.
    """

    name: str
    declared: TensorType
    dtype: torch.dtype | None
    sizes: tuple[str, ...]
    num_dims: int  # of `sizes`: with `has_rest` there may be more
    has_rest: bool
    strides: tuple[str, ...]

    @classmethod
    def of(cls, name: str, declared: TensorType, defines: Mapping[str, str]) -> "_Pointer":
        dtype: torch.dtype | None = None
        if declared.dtype == "T":
            dtype = next(each for each, macro in DTYPE_NAMES.items() if macro == defines["DTYPE"])
        elif declared.dtype in DTYPES:
            dtype = getattr(torch, DTYPES[declared.dtype])
        sizes = tuple(size for size in declared.shape if size != REST)
        has_rest = len(sizes) < len(declared.shape)
        return cls(name, declared, dtype, sizes, len(sizes), has_rest, declared.strides)


class _Formula:
    """A size that is computed of others: a sum, product or quotient."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.names = frozenset(re.findall(r"[A-Za-z_]\w*", text))
        source = re.sub(r"[A-Za-z_]\w*", r'sizes["\g<0>"]', text.replace("/", "//"))
        self.value: Callable[[Mapping[str, int]], int] = eval(f"lambda sizes: {source}")


class Signature:
    """The parameters of a variant of a kernel, which arguments are checked and converted to."""

    def __init__(self, kernel: str, defines: Mapping[str, str]) -> None:
        declared = declaration(kernel)
        parameters = declared.parameters_of(defines)
        self.kernel = kernel
        self.names = tuple(parameter.name for parameter in parameters)
        self.kinds = tuple(parameter.kind for parameter in parameters)
        self._maps = [index for index, kind in enumerate(self.kinds) if kind == "tensor_map"]
        pointers = [
            name for name, kind in zip(self.names, self.kinds, strict=True) if kind == "pointer"
        ]
        types = {name: declared.tensor_type(name, defines) for name in pointers}
        self._null = [name for name, of_tensor in types.items() if of_tensor is None]
        self._pointers = [_Pointer.of(name, of, defines) for name, of in types.items() if of]
        sizes = {size for pointer in self._pointers for size in pointer.sizes}
        self._sizes = sizes.union(*(pointer.strides for pointer in self._pointers))
        numbers = set(filter(str.isdigit, sizes))
        self._formulas = [
            _Formula(size) for size in sorted(sizes - numbers) if not size.isidentifier()
        ]
        names = set(filter(str.isidentifier, sizes))
        names = names.union(*(formula.names for formula in self._formulas))
        self._needed = names.union(self.names) - defines.keys()
        self._constants: dict[str, Any] = {number: int(number) for number in numbers}
        self._constants |= {macro: int(defines[macro]) for macro in names & defines.keys()}
        # Sizes that only other variants or null tensors have are 0.
        every = {
            size
            for alternatives in declared.tensors.values()
            for _, tensor_type in alternatives
            for size in (*tensor_type.shape, *tensor_type.strides)
        }
        certain = {
            size
            for pointer in self._pointers
            if not pointer.declared.or_null
            for size in (*pointer.sizes, *pointer.strides)
        }
        self._uncertain = tuple((every - certain).intersection(self.names))

    def bind(self, arguments: Mapping[str, Any], device: torch.device) -> list[Any]:
        """Return the value of each parameter, tensors as addresses.

        Tensor maps are made by functions, which are called when all tensors have been checked.
        Parameters that are sizes or strides of tensors are optional, and other sizes in the table
        may be given. Raises `TypeError` for missing and unknown arguments, and `ValueError` unless
        every tensor has the declared dtype and shape and is contiguous, aligned and on the device.
        """
        if not arguments.keys() <= self._needed:
            self._refuse_names(arguments, self._sizes)
        values = {**self._constants, **arguments}
        for pointer in self._pointers:
            name, declared, dtype, sizes, num_dims, has_rest, strides = pointer
            tensor = values.get(name)
            if tensor is None:
                if not declared.or_null:
                    self._refuse_none(pointer, arguments)
                values[name] = 0
                continue
            shape = self._first_sizes(pointer, tensor, values) if has_rest else tensor.shape
            if dtype is None:
                dtype = values.setdefault(declared.dtype, tensor.dtype)
            if tensor.dtype is not dtype or len(shape) != num_dims:
                self._refuse_type(pointer, tensor, dtype, values)
            for size, found in zip(sizes, shape):  # noqa: B905, an argument more takes longer
                if values.setdefault(size, found) != found:
                    self._refuse_type(pointer, tensor, dtype, values)
            if tensor.device != device:
                self._check_device(pointer, tensor, device)
            if strides:
                values.update(zip(strides, tensor.stride(), strict=False))
            if not tensor.is_contiguous():
                self._check_strides(pointer, tensor)
            address = values[name] = tensor.data_ptr()
            if address % _ALIGNMENT_BYTES and declared.aligned and tensor.numel():
                self._refuse(name, f"aligned to {_ALIGNMENT_BYTES} bytes", f"at {address:#x}")
        for name in self._null:
            if values.setdefault(name) is not None:
                self._refuse(name, "None in this variant", "a tensor")
            values[name] = 0
        for name in self._uncertain:
            values.setdefault(name, 0)
        try:
            for formula in self._formulas:
                found = values.get(formula.text)
                if found is not None and found != formula.value(values):
                    self._refuse_formula(formula, values)
            bound = [values[name] for name in self.names]
        except KeyError:
            self._refuse_names(arguments, values)
        for index in self._maps:
            bound[index] = bound[index]()
        return bound

    def _first_sizes(
        self, pointer: _Pointer, tensor: Tensor, values: dict[str, Any]
    ) -> tuple[int, ...]:
        """Return the sizes that have names; raise `ValueError` unless the others are as before."""
        rest = tensor.shape[pointer.num_dims :]
        if (wanted := values.setdefault(REST, rest)) != rest:
            self._refuse(pointer.name, f"of elements {list(wanted)}", f"{list(rest)}")
        return tensor.shape[: pointer.num_dims]

    def _check_device(self, pointer: _Pointer, tensor: Tensor, device: torch.device) -> None:
        if pointer.declared.maybe_pinned and tensor.device.type == "cpu" and tensor.is_pinned():
            return
        self._refuse(pointer.name, f"on {device}", f"on {tensor.device}")

    def _check_strides(self, pointer: _Pointer, tensor: Tensor) -> None:
        """Raise `ValueError` unless only the dimensions that may be apart are, by whole vectors."""
        num_apart, shape, strides = len(pointer.strides), tensor.shape, tensor.stride()
        expected = 1
        for i in range(len(shape) - 1, num_apart - 1, -1):
            if strides[i] != expected and shape[i] > 1:
                self._refuse(pointer.name, "contiguous", f"with strides {strides}")
            expected *= shape[i]
        for stride in strides[:num_apart] if pointer.declared.aligned else ():
            if stride * tensor.itemsize % _ALIGNMENT_BYTES:
                wanted = f"in rows that are aligned to {_ALIGNMENT_BYTES} bytes"
                self._refuse(pointer.name, wanted, f"with strides {strides}")

    def _refuse(self, name: str, wanted: str, found: str) -> NoReturn:
        raise ValueError(f"{self.kernel}: {name} must be {wanted}, not {found}")

    def _refuse_type(
        self, pointer: _Pointer, tensor: Tensor, dtype: torch.dtype, values: Mapping[str, Any]
    ) -> NoReturn:
        shape = ", ".join(str(values.get(size, size)) for size in pointer.sizes)
        found = f"{tensor.dtype} {list(tensor.shape)}"
        self._refuse(pointer.name, f"{dtype} [{shape}]", found)

    def _refuse_formula(self, formula: _Formula, values: Mapping[str, Any]) -> NoReturn:
        name = next(pointer.name for pointer in self._pointers if formula.text in pointer.sizes)
        wanted = f"a tensor with {formula.text} = {formula.value(values)}"
        self._refuse(name, wanted, f"{values[formula.text]}")

    def _refuse_none(self, pointer: _Pointer, arguments: Mapping[str, Any]) -> NoReturn:
        if pointer.name not in arguments:
            self._refuse_names(arguments, self._sizes)
        self._refuse(pointer.name, f"a tensor [{', '.join(pointer.declared.shape)}]", "None")

    def _refuse_names(self, arguments: Mapping[str, Any], found: Collection[str]) -> NoReturn:
        """Raise `TypeError` for what is neither given nor found in tensors, and what is unknown."""
        optional = {p.name for p in self._pointers if p.declared.or_null} | {*self._null}
        missing = sorted(self._needed - optional - arguments.keys() - {*found})
        unknown = sorted(arguments.keys() - self._needed)
        raise TypeError(f"{self.kernel}: missing arguments {missing}, unknown {unknown}")
