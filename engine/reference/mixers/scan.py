"""What the chunked scans of recurrences share."""

import torch
from torch import Tensor

CHUNK_TOKENS = 64  # computed together


def pairwise_decays(total: Tensor) -> Tensor:
    """Return exp(total_i − total_j) for j ≤ i, else 0: [num_seqs, heads, n, n].

    `total` [num_seqs, heads, n] are sums of logarithmic decays from the first token on.
    """
    differences = total.unsqueeze(-1) - total.unsqueeze(-2)
    later = torch.ones_like(differences[0, 0], dtype=torch.bool).triu_(1)
    return differences.masked_fill_(later, float("-inf")).exp_()
