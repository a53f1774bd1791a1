"""The kernels of a decode step, layer by layer, as in `test_emulated_kernels.py`.

The results of all steps are compared with those of transformers.
"""

from collections import Counter
from pathlib import Path

import pytest
import torch

from swiftchat.engine.model.hidden_states import LAST_NORM, HiddenStates
from tests.support.emulated.kernel_bench import NUM_TOKENS, KernelBench
from tests.support.reference import make_reference

STEPS = NUM_TOKENS - 18
ATTENTION = ("linear", "decode_attention", "linear")
MLP = ("linear", "linear")
# The kernels of a layer, in order, but for those of norms that torch computes.
LAYERS: dict[str, tuple[str, ...]] = {
    "llama": (*ATTENTION, *MLP),
    "qwen3": ("linear", "rotary", "decode_attention", "linear", *MLP),
    # A norm after each branch.
    "gemma2": (*ATTENTION, "add_norm", *MLP, "add_norm"),
    # The projections of both branches are added to the stream at the end.
    "cohere": ("norm", "linear", "decode_attention", "linear", "linear", "linear"),
    "mixtral": (*ATTENTION, "router", "expert_gate_up", "expert_down"),
}

# Norms of heads of few elements magnify rounding.
CHANGES = {"cohere": {"use_qk_norm": False}}


@pytest.mark.parametrize("model_type", LAYERS)
@torch.inference_mode()
def test_kernels_of_a_layer(model_type: str, tmp_path: Path) -> None:
    bench = KernelBench(
        make_reference(model_type, tmp_path, **CHANGES.get(model_type, {})), tmp_path
    )
    bench.check_fused_steps()
    end = ("norm", "linear") if bench.config.norm.kind == "layer" else ("linear",)
    step = ("embed", *LAYERS[model_type] * bench.config.num_layers, *end)
    assert bench.launched == [*step * STEPS]


@torch.inference_mode()
def test_hidden_states_change_no_bit_of_the_logits(tmp_path: Path) -> None:
    """The last norm is computed for them, and by the LM head once more."""
    bench = KernelBench(make_reference("llama", tmp_path), tmp_path)
    plain = bench.check_fused_steps().clone()
    without = Counter(bench.launched)
    hidden = HiddenStates([1, LAST_NORM])
    assert torch.equal(bench.check_fused_steps(hidden), plain)
    assert set(hidden.found) == {1, LAST_NORM}
    assert Counter(bench.launched) - without == {"norm": STEPS}
    head = bench.weights.lm_head.tensors[0]
    assert torch.allclose(hidden.found[LAST_NORM] @ head.t(), plain, atol=1e-4)
