"""A tiny Gemma 3n model with heads of the published size."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support import reference
from tests.support.gemma4 import save_with_small_scores

if TYPE_CHECKING:
    import transformers

HEADS = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 256}


def make(folder: Path, **changes: Any) -> "transformers.PreTrainedModel":
    """Save a random fp32 model in `folder` and return it."""
    model = reference.make_reference("gemma3n_text", folder, **changes)
    save_with_small_scores(model, folder)
    return model
