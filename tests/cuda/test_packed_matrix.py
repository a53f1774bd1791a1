"""The packed layout as the kernels read it, decoded without a GPU."""

import pytest
import torch
from torch import Tensor

from swiftchat.cuda.packed_layout import PACKED_SCHEMES, PACKINGS, packed_bytes, packing_fits
from swiftchat.cuda.packed_matrix import (
    PackedMatrix,
    pack_fp8,
    pack_int4,
    pack_int8,
    pack_int8_groups,
    pack_mxfp4,
    pack_nvfp4,
)
from tests.support.kernels.case import Inputs
from tests.support.kernels.packed_matrices import E2M1, nibbles_to_column_order, packed, parts


def made_int4(rows: int, k: int, group: int) -> tuple[Tensor, Tensor, Tensor, PackedMatrix]:
    torch.manual_seed(rows + k)
    quantized = torch.randint(0, 16, (rows, k), dtype=torch.uint8)
    scale = (torch.randn(rows, k // group) / 50).bfloat16().float()
    zero = torch.randint(0, 16, (rows, k // group)).float()
    values = quantized[:, 0::2] | quantized[:, 1::2] << 4
    return quantized, scale, zero, pack_int4(values, scale, zero, torch.bfloat16)


@pytest.mark.parametrize(
    ("rows", "k", "group"),
    [
        *(
            (*shape, g)
            for shape in [(5, 128), (3, 640), (2, 2048), (3, 4736)]
            for g in PACKED_SCHEMES["INT4"].group_sizes
        ),
        (3, 576, 64),
        (7, 96, 32),
        (1, 32, 32),
        (2, 2080, 32),
    ],
)
def test_int4_packing_is_lossless(rows: int, k: int, group: int) -> None:
    """Padding columns are 0 and have a scale of 0."""
    quantized, scale, zero, matrix = made_int4(rows, k, group)
    assert matrix.shape == (rows, k)
    columns, table = parts(matrix)
    assert torch.equal(columns[:, :k], quantized.long()) and not columns[:, k:].any()
    s, z = table[:, : k // group].double().unbind(2)
    assert torch.equal(matrix.row_scale.double().unsqueeze(1) * s, scale.double())
    assert torch.equal(-z, zero.double())
    assert not table[:, k // group :].any() and table.shape[1] * group >= columns.shape[1]
    assert matrix.nbytes == packed_bytes("INT4", rows, k, group)


@pytest.mark.parametrize(("rows", "k"), [(5, 64), (3, 608), (2, 32), (4, 2080)])
def test_int8_group_packing_is_lossless(rows: int, k: int) -> None:
    torch.manual_seed(k)
    values = torch.randint(0, 256, (rows, k), dtype=torch.uint8)
    scale = (torch.randn(rows, k // 32) / 50).half().float()
    zero = torch.randint(96, 160, (rows, k // 32)).float()
    matrix = pack_int8_groups(values.clone(), scale, zero, torch.bfloat16)
    assert matrix.shape == (rows, k) and matrix.group_size == 32
    assert matrix.nbytes == packed_bytes("INT8", rows, k, 32)
    columns, table = parts(matrix)
    assert torch.equal(columns[:, :k] + 128, values.long()) and not columns[:, k:].any()
    s, z = table[:, : k // 32].double().unbind(2)
    off = (matrix.row_scale.double().unsqueeze(1) * s - scale.double()).abs()
    assert (off <= 2.0**-25 * scale.abs().amax(1, keepdim=True)).all()
    assert torch.equal(128 - z, zero.double())
    assert not table[:, k // 32 :].any() and table.shape[1] * 32 >= columns.shape[1]


@pytest.mark.parametrize(("rows", "k", "group"), [(5, 64, 64), (3, 160, 32), (9, 640, 64)])
def test_fp8_group_packing_is_lossless(rows: int, k: int, group: int) -> None:
    """Powers of two stay exact, other scales keep 11 bits relative to the row's largest."""
    torch.manual_seed(k)
    values = torch.randint(0, 256, (rows, k), dtype=torch.uint8)
    for scale, error in (
        (torch.ldexp(torch.ones(rows, k // group), torch.randint(-60, -48, (rows, 1))), 0.0),
        (torch.randn(rows, k // group) / 50, 2.0**-11),
    ):
        matrix = pack_fp8(values, scale, torch.bfloat16)
        assert matrix.shape == (rows, k) and matrix.group_size == group
        assert matrix.nbytes == packed_bytes("FP8", rows, k, group)
        columns, table = parts(matrix)
        assert torch.equal(columns[:, :k] & 255, values.long()) and not columns[:, k:].any()
        meant = matrix.row_scale.double().unsqueeze(1) * table[:, : k // group, 0].double()
        off = (meant - scale.double()).abs()
        assert (off <= error * scale.abs().amax(1, keepdim=True)).all()
        assert not table[:, k // group :].any() and table.shape[1] * group >= columns.shape[1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "k"), [(5, 128), (3, 160), (9, 672)])
def test_mxfp4_packing_is_lossless(rows: int, k: int, dtype: torch.dtype) -> None:
    """The byte of a group is the exponent field of what placed elements are multiplied by.

    They are 2^-126 (bf16) or 2^-14 (fp16) times as large. Rows have four neighboring bytes.
    """
    torch.manual_seed(k)
    elements = torch.randint(0, 16, (rows, k), dtype=torch.uint8)
    scale = torch.randint(100, 129, (rows, k // 32), dtype=torch.uint8)
    matrix = pack_mxfp4(elements[:, 0::2] | elements[:, 1::2] << 4, scale, dtype)
    assert matrix.shape == (rows, k) and matrix.row_scale is None
    assert matrix.nbytes == packed_bytes("MXFP4", rows, k, 32)
    tiles = matrix.tiles.view(len(matrix.tiles), -1, 8 * 68)
    shift, mantissa_bits = (14, 10) if dtype == torch.float16 else (126, 7)
    for row in range(rows):
        for tile, own in enumerate(tiles[row // 8]):
            fields = own[512:].view(8, 4)[row % 8]
            found = nibbles_to_column_order(own[row % 8 * 64 :][:64])
            expected = torch.zeros(128, dtype=torch.long)
            part = elements[row, tile * 128 :][:128]
            expected[: len(part)] = part
            assert torch.equal(found, expected)
            stored = scale[row, tile * 4 :][:4].double()
            factors = (fields.int() << mantissa_bits).short().view(dtype).double()
            assert torch.equal(factors[: len(stored)] * 2.0**-shift, 2.0 ** (stored - 127))
            assert not fields[len(stored) :].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "k"), [(5, 128), (3, 16), (9, 656)])
def test_nvfp4_packing_is_lossless(rows: int, k: int, dtype: torch.dtype) -> None:
    """The byte of a group is 2^7 times its scale at the place of fp16's bits.

    A row has eight: four for the columns 32p … 32p + 15, then four for the others. Elements take
    the signs of scales and the zeros.
    """
    torch.manual_seed(k)
    elements = torch.randint(0, 16, (rows, k), dtype=torch.uint8)
    scale = torch.randint(0, 256, (rows, k // 16), dtype=torch.uint8)
    scale[(scale & 127) == 127] = 0  # NaN
    scale[0, 0] = 128  # -0
    row_scale = torch.rand(rows)
    values = elements[:, 0::2] | elements[:, 1::2] << 4
    matrix = pack_nvfp4(values, scale, row_scale, dtype)
    assert matrix.shape == (rows, k) and torch.equal(matrix.row_scale, 128 * row_scale)
    assert matrix.nbytes == packed_bytes("NVFP4", rows, k, 16)
    tiles = matrix.tiles.view(len(matrix.tiles), -1, 8 * 72)
    numbers = torch.tensor(E2M1, dtype=torch.float64)
    wide = scale.view(torch.float8_e4m3fn).double().repeat_interleave(16, 1)
    expected = torch.zeros(rows, tiles.shape[1] * 128, dtype=torch.float64)
    expected[:, :k] = numbers[elements.long()] * wide
    for row in range(rows):
        for tile, own in enumerate(tiles[row // 8]):
            stored = own[512:].view(8, 2, 4)[row % 8].T.flatten()
            factors = (stored.short() << 7).view(torch.float16).double() / 128
            found = numbers[nibbles_to_column_order(own[row % 8 * 64 :][:64])]
            found = found * factors.repeat_interleave(16)
            assert torch.equal(found, expected[row, tile * 128 :][:128])


def test_mxfp4_scales_above_two_are_refused() -> None:
    values, scale = torch.zeros(2, 16, dtype=torch.uint8), torch.full((2, 1), 129).byte()
    with pytest.raises(ValueError, match="MXFP4 with a scale of 129"):
        pack_mxfp4(values, scale, torch.bfloat16)


@pytest.mark.parametrize(("group", "size"), [(128, 64), (96, 32), (320, 64), (160, 32)])
def test_larger_groups_are_divided(group: int, size: int) -> None:
    values, scale = torch.randint(0, 256, (5, 960), dtype=torch.uint8), torch.rand(5, 960 // group)
    if 960 % group:
        values = values[:, : group * (960 // group)].contiguous()
    divided = scale.repeat_interleave(group // size, 1)
    matrix, expected = (pack_fp8(values, each, torch.bfloat16) for each in (scale, divided))
    assert matrix.group_size == expected.group_size == size
    assert torch.equal(matrix.tiles, expected.tiles)
    assert torch.equal(matrix.row_scale, expected.row_scale)


def test_extreme_scales_stay_finite() -> None:
    scale = torch.tensor([[3e38, 1e38], [0, 0], [1e-40, 2e-45], [-5.0, 1e-9]])
    values = torch.zeros(4, 64, dtype=torch.uint8)
    matrix = pack_int4(values, scale, torch.full((4, 2), 15.0), torch.float16)
    table = parts(matrix)[1]
    assert matrix.row_scale.isfinite().all() and table.isfinite().all()
    meant = matrix.row_scale.unsqueeze(1) * table[:, :2, 0].float()
    largest = scale.abs().amax(1, keepdim=True)
    assert ((meant - scale).abs() <= 2.0**-11 * largest).all()
    assert (table[:, :2, 0].abs() < 2).all()


def test_rows_are_packed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = made_int4(37, 256, 64)[3]
    monkeypatch.setattr("swiftchat.cuda.packed_matrix._PACK_BYTES", 1000)
    assert torch.equal(made_int4(37, 256, 64)[3].tiles, whole.tiles)


@pytest.mark.parametrize(("rows", "k"), [(6, 48), (16, 64), (43, 208)])
def test_int8_and_fp8_byte_order(rows: int, k: int) -> None:
    """Each tile has 64 bytes of eight rows; the padding is 0."""
    values, scale = torch.randint(-128, 128, (rows, k), dtype=torch.int8), torch.rand(rows)
    for matrix in (pack_int8(values, scale, torch.float16), pack_fp8(values, scale, torch.half)):
        assert torch.equal(matrix.row_scale, scale)
        assert matrix.nbytes == packed_bytes(matrix.scheme, rows, k)
        blocks = matrix.tiles.view(torch.int8).view(-(-rows // 8), -(-k // 64), 8, 64)
        whole = torch.zeros(len(blocks) * 8, blocks.shape[1] * 64, dtype=torch.int8)
        whole[:rows, :k] = values
        for row in range(len(whole)):
            assert torch.equal(blocks[row // 8, :, row % 8].flatten(), whole[row])


@pytest.mark.parametrize(("scheme", "group"), PACKINGS)
def test_row_slices_and_reordering(scheme: str, group: int) -> None:
    make = Inputs(1, torch.bfloat16, device="cpu")
    matrix, _ = packed(make, scheme, group, 43, 640)
    index = torch.randperm(43)
    mixed = matrix.reordered(index).reordered(torch.argsort(index))
    assert torch.equal(mixed.tiles, matrix.tiles)
    if mixed.row_scale is not None and matrix.row_scale is not None:
        assert torch.equal(mixed.row_scale, matrix.row_scale)
    some = matrix.rows(16, 30)
    assert some.shape == (14, 640) and torch.equal(some.tiles, matrix.tiles[2:4])
    if not group:
        plain = matrix.plain_values(8, 43)
        assert torch.equal(plain, matrix.reordered(torch.arange(8, 43)).plain_values(0, 35))
        assert plain.shape == (35, 640)


def test_unsupported_shapes_do_not_fit() -> None:
    assert packing_fits("INT4", 640, 32) and packing_fits("INT8", 48) and packing_fits("FP8", 16)
    assert packing_fits("INT4", 576, 64) and not packing_fits("INT4", 576, 128)
    assert not packing_fits("INT4", 512, 256) and not packing_fits("INT4", 48, 32)
    assert packing_fits("INT8", 96, 32) and not packing_fits("INT8", 128, 64)
    assert packing_fits("FP8", 96, 32) and packing_fits("FP8", 64, 64)
    assert not packing_fits("FP8", 128, 128) and not packing_fits("FP8", 96, 64)
    assert not packing_fits("FP8", 48, 16) and not packing_fits("INT8", 112, 32)
    assert not packing_fits("INT8", 40) and not packing_fits("INT4", 0, 32)
    with pytest.raises(ValueError, match="INT8 rows of 40 columns"):
        pack_int8(torch.zeros(2, 40, dtype=torch.int8), torch.ones(2), torch.bfloat16)
    with pytest.raises(ValueError, match="INT4 rows of 128 columns in groups of 16"):
        pack_int4(
            torch.zeros(2, 64, dtype=torch.uint8),
            torch.ones(2, 8),
            torch.ones(2, 8),
            torch.bfloat16,
        )
