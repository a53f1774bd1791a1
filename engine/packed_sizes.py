"""What quantised weights take on a GPU, known before any of them is read. No torch."""

import math
from collections.abc import Mapping
from types import MappingProxyType

from swiftchat.cuda.packing import packed_bytes, packing_fits
from swiftchat.weights.families import canonical_shapes, tensor_name
from swiftchat.weights.kept import Float8, Int4, Int8, Int8Groups, Kept, group_of_cut
from swiftchat.weights.packed import PackedTensor
from swiftchat.weights.quantise import MATRICES
from swiftchat.weights.tensor_parallel import Part, Share

_PACKED = MATRICES | {"embed", "lm_head"}
_FORMS: Mapping[type[Kept], str] = MappingProxyType(
    {Int4: "INT4", Int8: "INT8", Int8Groups: "INT8", Float8: "FP8"}
)


def weights_on_gpu(share: Share, packed: Mapping[str, PackedTensor], item_bytes: int) -> int:
    """Bytes of a rank's weights where our kernels run the model; `packed` by Hugging Face name.

    Matrices stay packed where the kernels read their form and size; all else becomes numbers of
    `item_bytes`.
    """
    whole, total = canonical_shapes(share.config), 0
    for place, part in share.own_tensors():
        shape = part.shape(whole[place[0]])
        tensor = packed.get(tensor_name(share.config, *place))
        form = _form(tensor, part, shape) if tensor and place[0] in _PACKED else None
        if form is None:
            total += math.prod(shape) * item_bytes
        else:
            total += packed_bytes(form[0], shape[0], shape[1], form[1])
    return total


def _form(tensor: PackedTensor, part: Part, shape: tuple[int, ...]) -> tuple[str, int] | None:
    """The kernels' form and group that a part of a matrix is kept in; None: it is decoded."""
    keeping = tensor.kept
    form = None if keeping is None else _FORMS.get(keeping.form)
    if keeping is None or form is None:
        return None
    group = keeping.group
    if group and part.axis == 1:
        group = group_of_cut(group, part.spans)
    return (form, group) if packing_fits(form, shape[1], group) else None
