"""The sizes of the batches that are captured in CUDA graphs."""

from swiftchat.weights.architectures.parts.model import ModelConfig

# Rows of a decode step with a graph of their own; others are padded to the next one.
DECODE_ROWS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256)
# The same of tokens of a chunk of one prompt. Longer chunks keep the GPU busy for longer than the
# host needs to launch their kernels.
PREFILL_TOKENS = (16, 32, 64, 128, 256, 512)
_MORE_TOKENS = (1024, 2048)  # of models whose layers have many kernels


def prefill_sizes(config: ModelConfig) -> tuple[int, ...]:
    """Return the numbers of tokens of a model's captured chunks, in ascending order."""
    has_many = (
        config.moe is not None or config.mixer is not None or config.attention.latent is not None
    )
    return PREFILL_TOKENS + _MORE_TOKENS if has_many else PREFILL_TOKENS
