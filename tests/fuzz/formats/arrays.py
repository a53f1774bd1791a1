"""Comparison of arrays, bit by bit but for the signs and payloads of NaN."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.fuzz.target import Difference


def equal(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Return whether shape and values are the same."""
    if ours.shape != theirs.shape:
        return False
    same: np.ndarray = ours == theirs
    if ours.dtype.kind == "f":
        same |= np.isnan(ours) & np.isnan(theirs)
    return bool(same.all())


def compare_tensors(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Raise `Difference` unless both have the same names, dtypes' sizes, shapes and values."""
    if ours.keys() != theirs.keys():
        names = sorted(ours.keys() ^ theirs.keys())
        raise Difference(f"one side only: {names[:3]!r}")
    for name, array in ours.items():
        other = theirs[name]
        if array.itemsize != other.itemsize:
            raise Difference(f"{name!r}: {array.dtype} and {other.dtype}")
        if not equal(array, other.view(array.dtype)):
            raise Difference(f"{name!r}: other values")
