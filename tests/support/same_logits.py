"""Logits of equal weights in different memory."""

import torch


def assert_same_logits(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Compare float32 logits that the same operators computed from equal weights.

    Not bitwise: the operators of torch choose their code by the address of a tensor too, and sum
    in another order then. Compare the weights bitwise.
    """
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
