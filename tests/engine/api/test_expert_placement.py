"""Which layers' experts a GPU holds, for any sizes."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftchat.engine.api.expert_placement import ExpertSizes, LayerExperts, Room, place_experts
from swiftchat.errors import DeviceError, OutOfMemory

MIB = 1 << 20
WANTED, LEAST = 4096, 256


def sizes_of(other: int, layers: list[int]) -> ExpertSizes:
    """Return sizes in MiB; in main memory experts are larger by a half."""
    each = [LayerExperts(3 * i, n * MIB, n * MIB * 3 // 2) for i, n in enumerate(layers)]
    return ExpertSizes((other + sum(layers)) * MIB, each)


def room(gpu: int, host: int, per_token: int = 1024) -> Room:
    """Return a GPU of so many MiB, a tenth of which stays free."""

    def fits(weights_bytes: int, num_tokens: int, gpu_bytes: int) -> bool:
        return weights_bytes + num_tokens * per_token <= gpu_bytes * 9 // 10

    return Room(gpu * MIB, host * MIB, (WANTED, LEAST), fits)


SIZES = st.builds(
    sizes_of, st.integers(0, 500), st.lists(st.integers(1, 300), min_size=1, max_size=12)
)
ROOMS = st.builds(room, st.integers(1, 4000), st.integers(0, 6000))


@given(SIZES, ROOMS)
def test_as_few_layers_as_the_gpu_requires(sizes: ExpertSizes, memory: Room) -> None:
    try:
        placement = place_experts(sizes, memory, None)
    except OutOfMemory:
        least, most = sizes.placement(len(sizes.layers)), memory.gpu_bytes
        is_too_large = not memory.fits(least.gpu_bytes, LEAST, most)
        assert is_too_large or any(
            sizes.placement(n).host_bytes > memory.host_bytes for n in range(len(sizes.layers) + 1)
        )
        return
    assert placement.host_bytes <= memory.host_bytes
    assert memory.fits(placement.gpu_bytes, LEAST, memory.gpu_bytes)
    num_host = len(placement.host_layers)
    assert placement.host_layers == tuple(each.layer for each in sizes.layers)[-num_host or 99 :]
    on_host = sum(each.gpu_bytes for each in sizes.layers if each.layer in placement.host_layers)
    assert placement.gpu_bytes + on_host == sizes.weights_bytes
    if num_host and memory.fits(placement.gpu_bytes, WANTED, memory.gpu_bytes):
        fewer = sizes.placement(num_host - 1)
        assert not memory.fits(fewer.gpu_bytes, WANTED, memory.gpu_bytes)


@given(SIZES, ROOMS, st.integers(0, 15))
def test_a_chosen_number(sizes: ExpertSizes, memory: Room, num_host: int) -> None:
    try:
        placement = place_experts(sizes, memory, num_host)
    except DeviceError as error:
        assert error.exit_code == 4
        if num_host > len(sizes.layers):
            assert f"the model has {len(sizes.layers)} layers with experts" in error.message
    else:
        assert len(placement.host_layers) == num_host


def message(call: Callable[[], object]) -> str:
    with pytest.raises(OutOfMemory) as caught:
        call()
    return caught.value.message


@pytest.mark.fault(16)
def test_a_gpu_that_is_too_small_says_the_minimum() -> None:
    sizes = sizes_of(90, [50, 50])
    text = message(lambda: place_experts(sizes, room(100, 1000), None))
    assert "0 of 2 layers' experts on the GPU" in text
    assert "needs 101 MiB, 100 MiB are free" in text
    assert place_experts(sizes, room(101, 1000), None).host_layers == (0, 3)
    assert "needs 156 MiB" in message(lambda: place_experts(sizes, room(101, 1000), 1))


@pytest.mark.fault(16)
def test_main_memory_that_is_too_small_names_both_sizes() -> None:
    text = message(lambda: place_experts(sizes_of(10, [400, 400]), room(500, 100), None))
    assert "0.63 GB needed for experts of 1 of 2 layers, 0.10 GB free" in text


def test_sizes_of_tensors() -> None:
    tensors = [
        (("embed", None, None), 7),
        (("router", 1, None), 1),
        (("expert_gate", 1, 0), 2),
        (("expert_down", 1, 1), 3),
        (("experts_gate_up_bias", 4, None), 5),
        (("shared_down", 4, None), 6),
    ]
    sizes = ExpertSizes.of(tensors, [(key, 10 * nbytes) for key, nbytes in tensors])
    assert sizes == ExpertSizes(24, [LayerExperts(1, 5, 50), LayerExperts(4, 5, 50)])
    assert sizes.placement(1).gpu_bytes == 19
