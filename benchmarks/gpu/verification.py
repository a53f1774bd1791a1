"""Verification steps of speculation on the GPU with random weights: their cost by rows.

    python benchmarks/gpu/verification.py [--shape llama-3.1-8b[:int4]] [--context 1024 …]

The rows are the last token and the proposed tokens of one sequence. Steps are replayed graphs with
sampling, timed by device events, and relative to a decode step of one row. The last column is a
whole verification from the host: loading the rows, the step, and its tokens.
"""

import argparse
import statistics
import time
from typing import Any

import torch
from decode import CUBINS, load_rows
from timing import median_us

from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.gpu.capture import Captured
from swiftchat.engine.gpu.inputs.decode_batch import DecodeBatch
from swiftchat.engine.gpu.steps.decode_graphs import DecodeGraphs
from swiftchat.engine.gpu.steps.verification import Verification
from swiftchat.engine.schedule.sequence import Row, Step, TokenSequence
from swiftchat.engine.steps.runner import StepInputs

SIZES = (1, 2, 4, 8, 16)


def verification(engine: Engine) -> Verification:
    """Return verification steps with a graph for each of SIZES."""
    ops, vocab_size = engine.decoder.ops, engine.vocab_size
    blocks = -(-engine.ctx_size_tokens // engine.config.block_size)
    states = engine.cache.states.layers
    batch = DecodeBatch(ops.gpu, SIZES[-1], blocks, engine.config.block_size, vocab_size, states)
    graphs = DecodeGraphs(engine.decoder, ops, engine.cache, batch, SIZES, shares_blocks=True)
    return Verification(graphs)


def measure(engine: Engine, verifier: Verification, context: int) -> None:
    params = SamplingParams(temperature=0)
    load_rows(engine, 1, context, params)
    graph = engine.graphs.decode.graphs.graph(1)
    plain_us = median_us(graph.replay)
    print(f"context {context}: decode step {plain_us:.0f} us")
    sequence = TokenSequence(0, [5] * (context + 1), params)
    sequence.num_computed = context
    sequence.block_table = list(range(-(-(context + 40) // engine.config.block_size)))
    batch, has_states = verifier.graphs.batch, engine.decoder.config.mixer is not None
    if has_states:
        sequence.state_slot, sequence.spare_slot = 0, 1
    for num_rows in (1, 2, 3, 4, 5, 8, 9):
        row = Row(sequence, 1, (5,) * (num_rows - 1))
        sequence.verified_slots = list(range(1, 1 + num_rows)) if has_states else []
        batch.load_rows([row], [7])
        graph = verifier.graphs.graph(num_rows)

        def replay(graph: Captured[Any] = graph) -> None:
            graph.replay()
            if has_states:  # the slots of an even step; takes about 2 us
                batch.step.zero_()

        step_us = median_us(replay)
        batch.num_steps = 0
        whole = []
        for _ in range(30 if 1 < num_rows <= 8 else 0):
            started = time.perf_counter()
            verifier.compute(StepInputs(Step([row], []), [7], engine.config.block_size))
            whole.append(1e6 * (time.perf_counter() - started))
        host = f"{statistics.median(whole):8.0f} us" if whole else ""
        print(f"  {num_rows} rows {step_us:8.0f} us  {step_us / plain_us:5.2f} x {host}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="llama-3.1-8b")
    parser.add_argument("--context", type=int, nargs="+", default=[1024])
    args = parser.parse_args()
    config = EngineConfig(
        device="cuda", dummy=args.shape, ctx_size_tokens=max(args.context) + 256, max_num_seqs=16
    )
    engine = build_engine(CUBINS, config, cubins=CUBINS)
    print(f"{args.shape}: loaded in {engine.info.load_s:.1f} s")
    verifier = verification(engine)
    for tensor in engine.cache.states.tensors:
        tensor.normal_()
    with torch.inference_mode():
        for context in args.context:
            measure(engine, verifier, context)


if __name__ == "__main__":
    main()
