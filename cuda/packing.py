"""Which matrices of 8 or 4 bits the kernels read, and how much memory those take. No torch.

A form is INT8, FP8 or INT4; INT4, and INT8 that is not whole rows, have factors in groups.
"""

GROUPS = {"INT4": (32, 64, 128), "INT8": (32,)}  # of columns that may have a factor together
STEPS = {"INT4": 128, "INT8": 64}  # columns in groups that lie in one order, see `packed_matrix`
CHUNKS = {"INT4": 2048, "INT8": 1024}  # columns whose numbers lie together, before their factors


def packing_fits(form: str, k: int, group: int = 0) -> bool:
    """Whether the kernels read rows of k columns in this form; group 0: a row has one factor."""
    if group or form == "INT4":
        return k > 0 and group in GROUPS.get(form, ()) and k % group == 0
    return k > 0 and k % 16 == 0


def filled(form: str, k: int, group: int) -> int:
    """How many columns rows of k have in memory: whole steps, where they are in groups."""
    return -(-k // STEPS[form]) * STEPS[form] if group else k


def row_bytes(form: str, k: int, group: int) -> int:
    """Bytes of k columns: in groups, of every chunk their numbers, then fp16 scales and zeros in
    turn, filled up to whole 16 bytes."""
    numbers = filled(form, k, group) // (2 if form == "INT4" else 1)
    return numbers + (-(-k // group // 4) * 16 if group else 0)


def packed_bytes(form: str, rows: int, k: int, group: int = 0) -> int:
    """Bytes of a packed matrix with all its factors."""
    return rows * (row_bytes(form, k, group) + 4)
