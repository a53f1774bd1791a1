"""The rotation and the layout of the int5 KV cache, against fp64, and what it cannot hold."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftchat.engine.api.memory_estimate import kv_bytes_per_token
from swiftchat.engine.model.int5_kv import (
    KEY_LEVELS,
    VALUE_LEVELS,
    pack_kv,
    packed_sizes,
    rotate_heads,
    rotation_size,
    unpack_kv,
)
from swiftchat.errors import UsageError
from swiftchat.weights.model.directory import Model
from tests.support import tiny
from tests.support.changed_configs import changed


def rotation(head_dim: int) -> torch.Tensor:
    """The matrix of a head in fp64: Sylvester's signs are the parity of the common bits."""
    size = rotation_size(head_dim)
    signs = [[(-1.0) ** (i & j).bit_count() for j in range(size)] for i in range(size)]
    block = torch.tensor(signs, dtype=torch.float64) / size**0.5
    return torch.block_diag(*[block] * (head_dim // size))


@pytest.mark.parametrize(
    ("head_dim", "size"), [(64, 64), (128, 128), (80, 16), (96, 32), (24, 8), (1, 1)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_heads_are_multiplied_by_hadamard_matrices(
    head_dim: int, size: int, dtype: torch.dtype
) -> None:
    """Rotated twice they are what they were; a step of the sums is rounded to fp32."""
    torch.manual_seed(0)
    heads = torch.randn(3, 2, head_dim).to(dtype)
    found, expected = rotate_heads(heads), heads.double() @ rotation(head_dim)
    assert rotation_size(head_dim) == size and found.dtype == dtype
    bound = expected.abs().max() * (2**-20 if dtype == torch.float32 else 2**-8)
    assert (found.double() - expected).abs().max() <= bound
    assert (rotate_heads(found).double() - heads.double()).abs().max() <= 2 * bound


@given(st.integers(0, 2**32), st.sampled_from([8, 24, 64, 80]), st.sampled_from([-90, 0, 100]))
@settings(max_examples=60, deadline=None)
def test_elements_are_within_half_a_step(seed: int, head_dim: int, exponent: int) -> None:
    """The largest element of a rotated head takes the lowest value, so the most on its other side
    is off by up to a whole step."""
    generator = torch.Generator().manual_seed(seed)
    new = torch.randn(5, 6, head_dim, generator=generator) * 2.0**exponent
    new[0, 1] = 0
    parts = pack_kv(new)
    *packed, scales = parts
    assert [part.dtype for part in parts] == [torch.int8] * 3 + [torch.float32]
    assert [tuple(part.shape[1:]) for part in packed] == list(packed_sizes(6, head_dim))
    rotated = new.double() @ rotation(head_dim)
    error = (unpack_kv(parts, torch.float32).double() - rotated).abs()
    step = scales.double().abs().unsqueeze(-1)
    is_opposite = rotated.abs() > (rotated.abs().amax(-1, keepdim=True) - step)
    assert (error <= torch.where(is_opposite, step, step / 2) * (1 + 2**-12)).all()
    levels = torch.tensor([KEY_LEVELS] * 3 + [VALUE_LEVELS] * 3)
    largest = rotated.abs().amax(-1)
    assert torch.allclose(scales.double().abs() * levels, largest, rtol=1e-5, atol=2.0**-90)


def test_bytes_have_the_documented_order() -> None:
    """A key and a value whose rotated elements are the integers of their ranges."""
    keys, values = torch.arange(-32.0, 32), (torch.arange(64.0) * 5) % 32 - 16
    new = rotate_heads(torch.stack([keys, values]).unsqueeze(0))
    *packed, scales = pack_kv(new)
    assert torch.allclose(scales, torch.ones(1, 2))
    rows, key_bits, value_bits = (part.view(torch.uint8)[0].tolist() for part in packed)
    k, v = [int(x) + 32 for x in keys], [int(x) + 16 for x in values]
    assert rows[0] == [k[i] % 16 + 16 * (k[i + 32] % 16) for i in range(32)]
    assert key_bits == [[sum(k[i + 16 * j] // 16 << 2 * j for j in range(4)) for i in range(16)]]
    for group in range(8):
        u = v[8 * group : 8 * group + 8]
        words = [
            u[3 * i] + 32 * u[3 * i + 1] + 32**2 * u[3 * i + 2] + (u[7] >> 3 + i & 1) * 2**15
            for i in range(2)
        ]
        assert rows[1][4 * group : 4 * group + 4] == [
            b for w in words for b in divmod(w, 256)[::-1]
        ]
        assert value_bits[0][group] == u[6] + 32 * (u[7] % 8)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_heads_that_are_not_finite_stay_so(bad: float) -> None:
    new = torch.ones(2, 4, 8)
    new[1, 2, 5] = bad
    parts = pack_kv(new)
    assert parts[-1].isfinite().tolist() == [[True] * 4, [True, True, False, True]]
    found = unpack_kv(parts, torch.float32)
    assert not found[1, 2].isfinite().any()
    assert torch.allclose(rotate_heads(found[0]), new[0])


def test_unpacking_more_tokens_than_one_chunk() -> None:
    torch.manual_seed(0)
    parts = pack_kv(torch.randn(1100, 2, 8))
    tokens = zip(*(part.split(1) for part in parts), strict=True)
    by_one = [unpack_kv(token, torch.bfloat16) for token in tokens]
    assert torch.equal(unpack_kv(parts, torch.bfloat16), torch.cat(by_one))


def test_heads_that_are_no_multiple_of_8_are_refused(tmp_path: Path) -> None:
    tiny.make("llama", tmp_path)
    config = changed(Model.open(tmp_path).config, attention={"head_dim": 12})
    with pytest.raises(UsageError, match=r"int5 does not apply.* 12 elements") as caught:
        kv_bytes_per_token(config, 2, "int5")
    assert caught.value.hint == "use --kv-dtype int8"
    assert kv_bytes_per_token(config, 2, "int8") > 0
