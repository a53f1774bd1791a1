"""Batches at fixed addresses: kernels read what an uploaded batch has."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.gpu.inputs.device_batch import DeviceBatch, Rows
from swiftchat.engine.gpu.inputs.fixed_batch import FixedBatch
from swiftchat.engine.schedule.batch import Batch
from swiftchat.engine.schedule.sequence import Row, TokenSequence

BLOCK_SIZE, CPU = 4, torch.device("cpu")
STATES = {0: (torch.zeros(4, 2),)}
TABLE = [7, 2, 6]


@pytest.fixture(autouse=True)
def no_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)


def row(num_computed: int, num_tokens: int) -> Row:
    sequence = TokenSequence(1, list(range(20, 20 + num_computed + num_tokens)), SamplingParams())
    sequence.num_computed, sequence.block_table = num_computed, TABLE
    sequence.state_slot, sequence.spare_slot = 2, 3
    return Row(sequence, num_tokens)


def packed(*rows: Row) -> DeviceBatch:
    cache: Any = SimpleNamespace(block_size=BLOCK_SIZE, states=SimpleNamespace(layers=STATES))
    batch = Batch.pack(rows, BLOCK_SIZE)
    return DeviceBatch.pack(batch, cache, CPU, has_scans=True, latents=None)


def fixed(max_tokens: int, max_rows: int) -> FixedBatch:
    return FixedBatch(CPU, max_tokens, max_rows, len(TABLE), BLOCK_SIZE, STATES)


def check_rows(found: Rows | None, expected: Rows | None) -> None:
    """The block tables of a fixed batch are longer."""
    assert found is not None and expected is not None
    width = expected.block_tables.shape[1]
    assert torch.equal(found.block_tables[:, :width], expected.block_tables)
    assert torch.equal(found.context_lens, expected.context_lens)


@pytest.mark.parametrize("num_computed", [0, 3])
def test_a_padded_chunk_is_the_packed_batch_before_its_padding(num_computed: int) -> None:
    inputs, expected = fixed(8, 1), packed(row(num_computed, 5))
    addresses = [inputs.ids.data_ptr(), inputs.block_tables.data_ptr()]
    inputs.put_chunk(Batch.pack([row(0, 8)], BLOCK_SIZE), 8)  # an earlier chunk
    inputs.put_chunk(Batch.pack([row(num_computed, 5)], BLOCK_SIZE), 8)
    inputs.copy(1)
    found = inputs.chunk(8, 12, one_by_one=False)
    assert torch.equal(found.ids[:5], expected.ids)
    assert torch.equal(found.positions[:5], expected.positions)
    assert found.slot_mapping.tolist() == [*expected.slot_mapping.tolist(), -1, -1, -1]
    assert found.prefill is not None and found.prefill.query_starts is not None
    check_rows(found.prefill, expected.prefill)
    assert found.prefill.query_starts.tolist() == [0, 5] and found.prefill.max_num_tokens == 8
    assert found.logits_indices is not None and found.logits_indices.tolist() == [4]
    assert found.scans is not None and expected.scans is not None and found.steps is None
    assert torch.equal(found.scans.slots, expected.scans.slots)
    assert [found.ids.data_ptr(), inputs.block_tables.data_ptr()] == addresses


def test_a_chunk_one_by_one_has_a_decode_row_for_each_token() -> None:
    inputs = fixed(8, 1)
    inputs.put_chunk(Batch.pack([row(3, 5)], BLOCK_SIZE), 8)
    inputs.copy(1)
    decode = inputs.chunk(8, 12, one_by_one=True).decode
    assert decode is not None and decode.context_lens.tolist() == [4, 5, 6, 7, 8, 0, 0, 0]
    assert decode.block_tables[:, :2].tolist() == [TABLE[:2]] * 8


def test_padding_has_no_slots_and_no_context() -> None:
    inputs = fixed(8, 1)
    inputs.put_chunk(Batch.pack([row(3, 5)], BLOCK_SIZE), 8)
    inputs.put_chunk(None, 8)
    inputs.copy(1)
    found = inputs.chunk(8, 12, one_by_one=False)
    assert found.slot_mapping.tolist() == [-1] * 8
    assert found.prefill is not None and found.prefill.query_starts is not None
    assert found.prefill.query_starts.tolist() == [0, 0]
    assert found.prefill.context_lens.tolist() == [0]


def test_tokens_of_a_sequence_are_rows_that_share_its_blocks() -> None:
    """Rows keep their addresses."""
    inputs = fixed(8, 8)
    found = inputs.decode_rows(slice(0, 4), shares_states=True)
    inputs.clear()
    inputs.put_tokens(0, [30, 31, 32], TABLE, 3)
    inputs.copy(3)
    assert found.ids.tolist() == [30, 31, 32, 0]
    assert found.positions.tolist() == [3, 4, 5, 0]
    assert found.previous_slots(BLOCK_SIZE).tolist() == [30, 31, 8, -1]
    assert found.slot_mapping.tolist() == [31, 8, 9, -1]
    assert found.decode is not None and found.decode.context_lens.tolist() == [4, 5, 6, 0]
    assert found.decode.block_tables[:3, :3].tolist() == [TABLE] * 3
    assert found.steps is not None and found.steps.chained
    assert found.steps.slots.tolist() == [[-1] * 8] * 2


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize(("first", "length"), [(0, 6), (3, 5), (4, 3)])
def test_slots_before_the_tokens_of_a_chunk(first: int, length: int, one_by_one: bool) -> None:
    batch, inputs = Batch.pack([row(first, length)], BLOCK_SIZE), fixed(8, 1)
    inputs.put_chunk(batch, 8)
    inputs.copy(1)
    found = inputs.chunk(8, 12, one_by_one=one_by_one).previous_slots(BLOCK_SIZE).tolist()
    assert found == batch.previous_slots(BLOCK_SIZE) + [-1] * (8 - length)
    places = range(first - 1, first + length - 1)
    slots = [TABLE[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE if p >= 0 else -1 for p in places]
    assert batch.previous_slots(BLOCK_SIZE) == slots


def test_slots_before_the_tokens_of_several_rows() -> None:
    rows = [row(6, 1), row(4, 1), row(2, 3), row(0, 5), row(3, 2)]
    expected = Batch.pack(rows, BLOCK_SIZE).previous_slots(BLOCK_SIZE)
    assert packed(*rows).previous_slots(BLOCK_SIZE).tolist() == expected


def test_decode_rows_come_before_longer_ones() -> None:
    batch = packed(row(6, 1), row(2, 3))
    assert batch.num_decode == 1
    assert batch.decode is not None and batch.decode.block_tables.tolist() == [TABLE[:2]]
    assert batch.prefill is not None and batch.prefill.block_tables.tolist() == [TABLE[:2]]
    assert batch.prefill.query_starts is not None
    assert batch.prefill.query_starts.tolist() == [0, 3]
    assert batch.steps is not None and batch.steps.slots.tolist() == [[2], [3]]
    assert batch.scans is not None and batch.scans.starts.tolist() == [1, 4]
