"""Random weights: to time and to test without downloads."""

import torch
from torch import Tensor

from swiftchat.engine.decoder import DecoderWeights, LayerWeights
from swiftchat.errors import UsageError
from swiftchat.weights.config import ModelConfig

# As peaked as a trained model's: top-p 0.95 then keeps a few tokens, not tens of thousands.
_LOGIT_STD = 4.0


def dummy_weights(config: ModelConfig, dtype: torch.dtype, device: torch.device,
                  seed: int = 0) -> DecoderWeights:  # fmt: skip
    """Weights generated on the device, the same for the same seed, dtype and kind of device.

    The spread of a matrix keeps the size of what goes through it, and what the layers add to
    the residual stream together is about as large as an embedding, so that logits have a
    standard deviation near `_LOGIT_STD` at any depth. Where embeddings serve as `lm_head` too,
    they have the spread of that.

    Raises `UsageError` for a model that has other tensors than Llama's.
    """
    if not config.like_llama:
        raise UsageError(
            f"no random weights for models of the family {config.family}",
            "--dummy knows those that compute what Llama does",
        )
    hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    q_rows = config.num_heads * head_dim
    qkv_rows = q_rows + 2 * config.num_kv_heads * head_dim
    generator = torch.Generator(device).manual_seed(seed)

    def normal(shape: tuple[int, ...], std: float, mean: float = 0.0) -> Tensor:
        tensor = torch.empty(shape, dtype=dtype, device=device)
        return tensor.normal_(mean, std, generator=generator)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> Tensor:
        return normal((rows, columns), scale * columns**-0.5)

    def norm() -> Tensor:
        return normal((hidden,), 0.1, mean=1.0)

    def bias(present: bool, rows: int, scale: float = 1.0) -> Tensor | None:
        return normal((rows,), 0.1 * scale) if present else None

    branch = (2 * config.num_layers) ** -0.5  # two branches a layer are added up
    layers = [
        LayerWeights(
            attn_norm=norm(),
            qkv=matrix(qkv_rows, hidden),
            qkv_bias=bias(config.attention_bias, qkv_rows),
            o=matrix(hidden, q_rows, branch),
            o_bias=bias(config.output_bias, hidden, branch),
            mlp_norm=norm(),
            gate_up=matrix(2 * inner, hidden),
            gate_up_bias=bias(config.mlp_bias, 2 * inner),
            down=matrix(hidden, inner, branch),
            down_bias=bias(config.mlp_bias, hidden, branch),
        )
        for _ in range(config.num_layers)
    ]
    final_norm = norm()
    lm_head = matrix(config.vocab_size, hidden, _LOGIT_STD)
    embed = lm_head if config.tied_embeddings else normal((config.vocab_size, hidden), 1.0)
    return DecoderWeights(embed, layers, final_norm, lm_head)
