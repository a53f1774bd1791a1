"""penalties: equal to the CPU's sampler, which rounds each operation to fp32 too."""

import pytest
import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.sampling import penalties
from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.sampling.penalties import apply_penalties
from tests.support.kernel_case import Inputs

pytestmark = pytest.mark.gpu
SEEN = 1 << 30  # set in counts for ids of the prompt and the answer
PARAMS = [
    SamplingParams(repeat_penalty=1.3),
    SamplingParams(),
    SamplingParams(presence_penalty=0.7),
    SamplingParams(frequency_penalty=0.13),
    SamplingParams(repeat_penalty=0.8, presence_penalty=-0.31, frequency_penalty=1.7),
    SamplingParams(repeat_penalty=100.0, presence_penalty=100.0, frequency_penalty=-100.0),
]


def apply(gpu: Gpu, logits: Tensor, counts: Tensor, params: list[SamplingParams]) -> None:
    repeat, presence, frequency = (
        torch.tensor([getattr(p, f"{name}_penalty") for p in params], device="cuda")
        for name in ("repeat", "presence", "frequency")
    )
    penalties(
        gpu,
        logits,
        counts,
        repeat_penalty=repeat,
        presence_penalty=presence,
        frequency_penalty=frequency,
    )


@pytest.mark.parametrize("vocab", [97, 2048, 50_257, 128_256])
@pytest.mark.parametrize(("num_prompt", "num_tokens"), [(40, 40), (0, 60), (300, 2000)])
def test_penalties(gpu: Gpu, vocab: int, num_prompt: int, num_tokens: int) -> None:
    make, n = Inputs(vocab), len(PARAMS)
    logits = make.normal(n, vocab) * 5
    logits[:, ::7] = 0
    before = logits.clone()
    tokens = make.integers(0, vocab, n, num_tokens)
    tokens[:, : num_tokens // 2] %= 50  # some often
    tokens[:, 0], tokens[:, -1] = 0, vocab - 1
    counts = torch.zeros(n + 2, vocab, dtype=torch.int32, device="cuda")
    counts[n:] = 5  # rows that are not used
    for row in range(n):
        counts[row] = torch.bincount(tokens[row, num_prompt:], minlength=vocab)
        counts[row, tokens[row].long()] |= SEEN
    apply(gpu, logits, counts, PARAMS)
    for row, params in enumerate(PARAMS):
        expected = apply_penalties(before[row].cpu(), tokens[row].tolist(), num_prompt, params)
        assert torch.equal(logits[row].cpu(), expected)


def test_nan_and_infinity_are_kept(gpu: Gpu) -> None:
    logits = Inputs(1).normal(1, 500)
    logits[0, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    counts = torch.full((1, 500), SEEN | 3, dtype=torch.int32, device="cuda")
    apply(gpu, logits, counts, [PARAMS[4]])
    assert not logits[0, :3].isfinite().any() and logits[0, 3:].isfinite().all()


def test_wrong_tensors_raise(gpu: Gpu) -> None:
    logits, off = torch.zeros(3, 10, device="cuda"), torch.zeros(3, device="cuda")
    counts = torch.zeros(2, 10, dtype=torch.int32, device="cuda")

    def apply_to(some: Tensor, repeat: Tensor, rest: Tensor) -> None:
        penalties(
            gpu,
            some,
            counts,
            repeat_penalty=repeat,
            presence_penalty=rest,
            frequency_penalty=rest,
        )

    with pytest.raises(ValueError, match="counts for 2"):
        apply_to(logits, off, off)
    with pytest.raises(ValueError, match="presence_penalty must be"):
        apply_to(logits[:2], off[:2].clone(), off)
