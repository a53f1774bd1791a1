"""Which matrices of 8 or 4 bits the kernels read, and how much memory those take. No torch.

A form is INT8, FP8 or INT4; INT4, and INT8 that is not whole rows, have factors in groups.
"""

GROUPS = {"INT4": (32, 64, 128), "INT8": (32,)}  # of columns that may have a factor together
STEPS = {"INT4": 128, "INT8": 64, "FP8": 64}  # columns in the 64 bytes that a row has in a record
BLOCK_ROWS = 8  # whose steps lie together, see `packed_matrix`


def packing_fits(form: str, k: int, group: int = 0) -> bool:
    """Whether the kernels read rows of k columns in this form; group 0: a row has one factor."""
    if group or form == "INT4":
        return k > 0 and group in GROUPS.get(form, ()) and k % group == 0
    return k > 0 and k % 16 == 0


def filled(form: str, k: int) -> int:
    """How many columns rows of k have in memory: whole steps."""
    return -(-k // STEPS[form]) * STEPS[form]


def record_bytes(form: str, group: int) -> int:
    """Bytes of one step of a block's rows: their numbers, then fp16 factors and offsets."""
    return BLOCK_ROWS * (64 + (STEPS[form] // group * 4 if group else 0))


def codes_shape(form: str, rows: int, k: int, group: int) -> tuple[int, int]:
    """Blocks of rows, and bytes of each."""
    steps = filled(form, k) // STEPS[form]
    return -(-rows // BLOCK_ROWS), steps * record_bytes(form, group)


def packed_bytes(form: str, rows: int, k: int, group: int = 0) -> int:
    """Bytes of a packed matrix with all its factors."""
    blocks, each = codes_shape(form, rows, k, group)
    return blocks * each + 4 * rows
