"""Kimi by `GatedDeltaKernels`, on emulated kernels, against torch's operators in fp32."""

from dataclasses import replace

import torch
from torch import Tensor

from swiftchat.cuda.ops.mixers.scans import ScanRows
from swiftchat.cuda.ops.mixers.steps import StepSlots
from swiftchat.engine.comm.communicator import SingleRank
from swiftchat.engine.gpu.mixers.gated_delta import GatedDeltaKernels
from swiftchat.engine.gpu.mixers.mix import kernels_of
from swiftchat.engine.model.mixer_weights import MixerInputs, MixerWeights
from swiftchat.engine.reference.mixers.kimi_delta import kimi_delta
from swiftchat.weights.architectures.parts.mixers import KimiDelta
from tests.support.emulated.kernels import emulated_gpu

MIXER = KimiDelta(num_heads=3, head_dim=8, kernel=4, norm_eps=1e-5)
NUM_TOKENS = 21


def random_weights(generator: torch.Generator) -> MixerWeights:
    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    width, size = MIXER.width, MIXER.head_dim
    return MixerWeights(
        project_in=None,  # type: ignore[arg-type]  # before the kernels
        project_in_bias=None,
        conv=normal(3 * width, MIXER.kernel),
        conv_bias=None,
        project_out=None,  # type: ignore[arg-type]  # after them
        project_out_bias=None,
        decay=normal(1, 1, MIXER.num_heads, 1),
        step_bias=normal(width),
        skip=None,
        norm=normal(size),
        project_x=None,
        project_step=normal(width, size),
        step_norm=None,
        b_norm=None,
        c_norm=None,
        project_gate=normal(width, size),
    )


def test_prompts_and_steps_equal_torch() -> None:
    generator = torch.Generator().manual_seed(3)
    weights = random_weights(generator)
    columns = 3 * MIXER.width + MIXER.num_heads + 2 * MIXER.head_dim
    inputs = torch.randn(NUM_TOKENS, columns, generator=generator)
    states = tuple(torch.zeros(1, *shape) for shape in MIXER.states)
    layer = MixerInputs(weights, states, torch.nn.functional.silu, SingleRank())
    expected, after = kimi_delta(inputs.unsqueeze(0), states, MIXER, layer)
    kernels = GatedDeltaKernels(emulated_gpu(), MIXER, "silu")
    assert kernels_of(MIXER) is GatedDeltaKernels and kernels.scans
    slots = [torch.full((3, *shape), torch.nan) for shape in MIXER.states]
    found = torch.full((NUM_TOKENS, MIXER.width), torch.nan)
    positions = torch.arange(NUM_TOKENS, dtype=torch.int32)
    current = 0
    for first, end in ((0, 9), (9, 18), *((i, i + 1) for i in range(18, NUM_TOKENS))):
        some, pair = slice(first, end), torch.tensor([[current], [1 - current]], dtype=torch.int32)
        out, places = torch.full((end - first, MIXER.width), torch.nan), positions[some].clone()
        args = inputs[some].clone(), out, replace(layer, states=slots)  # aligned
        if end - first > 1:
            starts = torch.tensor([0, end - first], dtype=torch.int32)
            kernels.scan(*args, ScanRows(starts, pair, places, end - first))
        else:
            kernels.step(*args, StepSlots(pair, places))
        found[some], current = out, 1 - current
    torch.testing.assert_close(found, expected[0], rtol=1e-4, atol=1e-5)
    for state, last in zip(slots, after, strict=True):
        torch.testing.assert_close(state[current], last[0], rtol=1e-4, atol=1e-5)


def test_decays_of_one_matrix_or_with_a_bound_are_not_covered() -> None:
    for other in ({"is_plain": True}, {"bound": -5.0}, {"kernel": 5}, {"head_dim": 132}):
        assert kernels_of(replace(MIXER, **other)) is None
