"""What quantized weights take on a GPU, known before any of them is read. No torch."""

import math
from collections.abc import Mapping
from types import MappingProxyType

from swiftchat.cuda.packed_layout import packed_bytes, packing_fits
from swiftchat.weights.architectures.tensors import canonical_shapes, tensor_name
from swiftchat.weights.parallel.tensor_parallel import Shard, TensorSlice
from swiftchat.weights.quantization.quantize import QUANTIZABLE
from swiftchat.weights.quantization.scheme import (
    Float8,
    Int4,
    Int8,
    Int8Groups,
    QuantizedMatrix,
    Scheme,
    sliced_group_size,
)
from swiftchat.weights.quantization.stored_tensor import StoredTensor

_PACKED = QUANTIZABLE | {"embed", "lm_head"}
_FORMS: Mapping[type[QuantizedMatrix], str] = MappingProxyType(
    {Int4: "INT4", Int8: "INT8", Int8Groups: "INT8", Float8: "FP8"}
)


def packed_schemes(packed: Mapping[str, StoredTensor]) -> dict[str, Scheme]:
    """How those of the tensors are kept that can be."""
    keepings = ((name, tensor.packed) for name, tensor in packed.items())
    return {name: kept.scheme for name, kept in keepings if kept is not None}


def gpu_weight_bytes(share: Shard, forms: Mapping[str, Scheme], item_bytes: int) -> int:
    """Bytes of a rank's weights where our kernels run the model; `forms` by Hugging Face name.

    Matrices stay packed where the kernels read their form and size; all else becomes numbers of
    `item_bytes`.
    """
    whole, total = canonical_shapes(share.config), 0
    for place, part in share.own_tensors():
        shape = part.shape(whole[place[0]])
        kept = forms.get(tensor_name(share.config, *place))
        form = None if kept is None or place[0] not in _PACKED else _form(kept, part, shape)
        if form is None:
            total += math.prod(shape) * item_bytes
        else:
            total += packed_bytes(form[0], shape[0], shape[1], form[1])
    return total


def _form(kept: Scheme, part: TensorSlice, shape: tuple[int, ...]) -> tuple[str, int] | None:
    """The kernels' form and group that a part of a matrix is kept in; None: it is decoded."""
    form, group = _FORMS[kept[0]], kept[1]
    if group and part.axis == 1:
        group = sliced_group_size(group, part.spans)
    return (form, group) if packing_fits(form, shape[1], group) else None
