"""penalties: equal to the CPU's sampler, which rounds each operation to fp32 too."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.sampling.sampling import penalties
from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.sampling.penalties import apply_penalties
from swiftchat.engine.sampling.sampler import process_logits
from tests.support.kernels.case import Inputs

pytestmark = pytest.mark.gpu
# Set in counts for ids of the prompt and the answer, and for ids that end an answer.
SEEN, ENDS = 1 << 30, 1 << 29
BANNED = -1e30
PARAMS = [
    SamplingParams(repeat_penalty=1.3),
    SamplingParams(),
    SamplingParams(presence_penalty=0.7),
    SamplingParams(frequency_penalty=0.13),
    SamplingParams(repeat_penalty=0.8, presence_penalty=-0.31, frequency_penalty=1.7),
    SamplingParams(repeat_penalty=100.0, presence_penalty=100.0, frequency_penalty=-100.0),
]


def apply(gpu: Gpu, logits: Tensor, counts: Tensor, params: list[SamplingParams]) -> None:
    """Apply the penalties only."""
    off = torch.zeros(len(params), dtype=torch.int32, device="cuda")
    call(gpu, logits, counts, params, torch.full_like(counts, 9, dtype=torch.float32), off, off)


def call(
    gpu: Gpu,
    logits: Tensor,
    counts: Tensor,
    params: list[SamplingParams],
    bias: Tensor,
    has_bias: Tensor,
    min_context_lens: Tensor,
    context_len: int = 100,
    masks: Tensor | None = None,
    has_mask: Tensor | None = None,
) -> None:
    repeat, presence, frequency = (
        torch.tensor([getattr(p, f"{name}_penalty") for p in params], device="cuda")
        for name in ("repeat", "presence", "frequency")
    )
    if masks is None:
        masks = torch.zeros(
            len(counts), -(-logits.shape[1] // 32), dtype=torch.int32, device="cuda"
        )
    penalties(
        gpu,
        logits,
        counts,
        bias,
        masks,
        has_bias=has_bias,
        repeat_penalty=repeat,
        presence_penalty=presence,
        frequency_penalty=frequency,
        context_lens=torch.full_like(has_bias, context_len),
        min_context_lens=min_context_lens,
        has_mask=torch.zeros_like(has_bias) if has_mask is None else has_mask,
    )


@pytest.mark.parametrize("penalized", [False, True])
@pytest.mark.parametrize("vocab", [97, 50_257])
def test_bias_and_bans(gpu: Gpu, vocab: int, penalized: bool) -> None:
    """Row 0 has a bias, row 1 is too short to end, row 2 is long enough, row 3 has both."""
    make, n, ends = Inputs(vocab), 4, (3, vocab - 1)
    plain = PARAMS[4] if penalized else PARAMS[1]
    logits = make.normal(n, vocab) * 5
    tokens = make.integers(0, vocab, n, 60)
    counts = torch.zeros(n, vocab, dtype=torch.int32, device="cuda")
    for row in range(n):
        counts[row] = torch.bincount(tokens[row, 40:], minlength=vocab)
        counts[row, tokens[row].long()] |= SEEN
    counts[:, list(ends)] += ENDS
    bias = torch.full((n, vocab), 7.0, device="cuda")
    some = {0: 2.5, 5: -3.25, vocab - 2: 100.0}
    for row in (0, 3):
        bias[row] = 0
        bias[row, list(some)] = torch.tensor(list(some.values()), device="cuda")
        bias[row, 11] = -torch.inf
    has_bias = torch.tensor([1, 0, 0, 1], dtype=torch.int32, device="cuda")
    shortest = torch.tensor([0, 61, 60, 99], dtype=torch.int32, device="cuda")
    before = logits.clone()
    call(gpu, logits, counts, [plain] * n, bias, has_bias, shortest, context_len=60)
    for row, (is_biased, min_tokens) in enumerate([(1, 0), (0, 21), (0, 20), (1, 59)]):
        params = replace(
            plain,
            logit_bias=tuple(some.items()) if is_biased else (),
            bad_words=((11,),) if is_biased else (),
            min_tokens=min_tokens,
            stop_ids=ends,
        )
        expected = process_logits(before[row].cpu(), tokens[row].tolist(), 40, params)
        expected = expected.masked_fill(expected == -torch.inf, BANNED)
        assert torch.equal(logits[row].cpu(), expected), row


@pytest.mark.parametrize("penalized", [False, True])
@pytest.mark.parametrize("vocab", [31, 97, 2048, 50_257, 128_256])
def test_masks(gpu: Gpu, vocab: int, penalized: bool) -> None:
    """Row 0 has no mask, row 1 a random one, row 2 allows only the last id, row 3 no id."""
    make, n = Inputs(vocab), 4
    params = PARAMS[4] if penalized else PARAMS[1]
    logits = make.normal(n, vocab) * 5
    tokens = make.integers(0, vocab, n, 60)
    counts = torch.zeros(n, vocab, dtype=torch.int32, device="cuda")
    for row in range(n):
        counts[row] = torch.bincount(tokens[row], minlength=vocab)
        counts[row, tokens[row].long()] |= SEEN
    allowed = make.integers(0, 2, n, vocab).bool()
    allowed[2:] = False
    allowed[2, -1] = True
    words = F.pad(allowed.long(), (0, -vocab % 32)).view(n, -1, 32)
    masks = (words << torch.arange(32, device="cuda")).sum(2).int()
    off = torch.zeros(n, dtype=torch.int32, device="cuda")
    before, has_mask = logits.clone(), torch.tensor([0, 1, 1, 1], dtype=torch.int32, device="cuda")
    bias = torch.full((n, vocab), 7.0, device="cuda")
    call(gpu, logits, counts, [params] * n, bias, off, off, masks=masks, has_mask=has_mask)
    allowed[0] = True
    for row in range(n):
        expected = process_logits(before[row].cpu(), tokens[row].tolist(), 0, params)
        assert torch.equal(logits[row].cpu(), expected.masked_fill(~allowed[row].cpu(), BANNED))
    before[1, 3] = torch.nan
    call(gpu, before, counts, [params] * n, bias, off, off, masks=masks, has_mask=has_mask)
    assert before[1, 3].isnan()


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
            counts.float(),
            counts[:, :1].contiguous(),
            has_bias=rest.int(),
            repeat_penalty=repeat,
            presence_penalty=rest,
            frequency_penalty=rest,
            context_lens=rest.int(),
            min_context_lens=rest.int(),
            has_mask=rest.int(),
        )

    with pytest.raises(ValueError, match="counts for 2"):
        apply_to(logits, off, off)
    with pytest.raises(ValueError, match="has_bias must be"):
        apply_to(logits[:2], off[:2].clone(), off)
