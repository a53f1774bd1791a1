"""The products of one decode step in one CUDA graph, against the read ceiling of the same run.

python benchmarks/gpu_linear.py [slots ...]
"""

import statistics
import sys
from collections.abc import Callable

import torch

from swiftchat.cuda.cubin_cache import CubinCache
from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops import linear as op
from swiftchat.cuda.ops.linear import Norm, Rotation, linear_workspace

# hidden, intermediate, heads, kv heads, head_dim, layers
SHAPES = {"1B": (2048, 8192, 32, 8, 64, 16), "8B": (4096, 14336, 32, 8, 128, 32)}
VOCAB = 128256


def median_us(run: Callable[[], None], repeats: int = 25) -> float:
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for _ in range(3):
        graph.replay()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16) * 0.02


def main() -> None:
    gpu = Gpu(torch.device("cuda", 0), CubinCache(None))
    big, vector = random(VOCAB, 4096), random(4096)
    ceiling = big.nbytes / median_us(lambda: torch.mv(big, vector)) / 1e6
    print(f"read ceiling (cuBLAS, {VOCAB} × 4096 by a vector): {ceiling:.2f} TB/s")
    for name, (hidden, inner, heads, kv_heads, head_dim, layers) in SHAPES.items():
        rows = (heads + 2 * kv_heads) * head_dim
        weights = [
            (random(rows, hidden), random(hidden, heads * head_dim), random(2 * inner, hidden),
             random(hidden, inner), random(hidden)) for _ in range(layers)
        ]  # fmt: skip
        head = random(VOCAB, hidden)
        num_bytes = head.nbytes + sum(w.nbytes for layer in weights for w in layer)
        workspace = linear_workspace(gpu, hidden)
        for n in (1, 2, 4, 8, 16):
            x = torch.randn(n, hidden, device="cuda")
            queries, mid = random(n, heads, head_dim), random(n, inner)
            logits = torch.empty(n, VOCAB, device="cuda")
            cache = random(4, 2 * kv_heads, 64, head_dim)
            ids = torch.arange(n, device="cuda", dtype=torch.int32)
            rotation = Rotation(torch.randn(64, head_dim, device="cuda"), ids, ids, cache, heads)

            def parts(x=x, queries=queries, mid=mid, logits=logits, rotation=rotation) -> dict:
                flat = queries.view(len(x), -1)
                return {
                    "qkv": lambda w: op.linear_rotate(gpu, x, w[0], queries, Norm(w[4], 1e-5), rotation),
                    "o": lambda w: op.linear_residual(gpu, flat, w[1], x, workspace),
                    "gate_up": lambda w: op.linear_gated(gpu, x, w[2], mid, Norm(w[4], 1e-5), "silu"),
                    "down": lambda w: op.linear_residual(gpu, mid, w[3], x, workspace),
                }  # fmt: skip

            steps = parts()

            def step() -> None:
                for layer in weights:
                    for part in steps.values():
                        part(layer)
                op.linear(gpu, x, head, logits, norm=Norm(weights[0][4], 1e-5))

            for slots in [int(s) for s in sys.argv[1:]] or [op.RING_SLOTS]:
                op.RING_SLOTS = slots
                us = median_us(step)
                rate = num_bytes / us / 1e6
                print(
                    f"{name} n={n:2} slots={slots}: {us:7.0f} us {rate:.2f} TB/s {rate / ceiling:.0%}"
                )
            if n in (1, 8):
                for part, index in (("qkv", 0), ("o", 1), ("gate_up", 2), ("down", 3)):
                    us = median_us(lambda p=part: [steps[p](w) for w in weights]) / layers  # type: ignore[misc]
                    rate = weights[0][index].nbytes / us / 1e6
                    print(f"   {part:8} {us:6.1f} us {rate:.2f} TB/s {rate / ceiling:.0%}")


if __name__ == "__main__":
    main()
