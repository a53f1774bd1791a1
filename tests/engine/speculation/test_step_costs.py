"""Estimated costs of captured steps: by rows, weights and states."""

import pytest

from swiftchat.engine.speculation.step_costs import StepCosts, gpu_step_s


def costs(weights_bytes: int = 16 * 10**9, **kind: bool) -> list[float]:
    of = StepCosts.on_gpu(weights_bytes, 32, **{"is_quantized": False, "has_states": False, **kind})
    return [of.cost(num_rows) for num_rows in (1, 2, 8, 9, 16)]


def test_steps_are_padded_to_8_or_16_rows() -> None:
    one, two, eight, nine, sixteen = costs()
    assert one == 1 < two == eight < nine == sixteen


@pytest.mark.parametrize("kind", ["is_quantized", "has_states"])
def test_quantized_weights_and_states_cost_more(kind: str) -> None:
    plain, more = costs(), costs(**{kind: True})
    assert more[0] == 1
    assert all(x > y for x, y in zip(more[1:], plain[1:], strict=True))


def test_the_host_counts_more_beside_a_short_step() -> None:
    assert costs(10**9)[1] > costs(16 * 10**9)[1]


def test_each_row_reads_other_experts_in_main_memory() -> None:
    kind = {"is_quantized": False, "has_states": False}
    as_long = int(6e10 * gpu_step_s(10**9, 32))  # main memory takes as long as the GPU
    plain, placed = (
        StepCosts.on_gpu(10**9, 32, **kind, host_row_bytes=nbytes) for nbytes in (0, as_long)
    )
    assert plain.slope == 0 and placed.slope == pytest.approx(0.5)
    assert placed.cost(8) - 1 == pytest.approx((plain.cost(8) - 1) / 2 + 0.5 * 7)
    assert gpu_step_s(10**9, 32, as_long) == pytest.approx(2 * gpu_step_s(10**9, 32))
