"""Models whose weights are changed after loading: streamed tensors have no values before that."""

from pathlib import Path

import pytest
import torch

from swiftchat.engine.load.loader import stream_weights
from tests.support import reference, tiny
from tests.support.same_logits import assert_same_logits

TYPES = ("lfm3", "laguna", "mimo_v2_flash", "minimax", "longcat_flash")


@pytest.mark.parametrize("model_type", TYPES)
def test_streamed_models_have_the_same_logits(
    model_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"use_attention_gate": True} if model_type == "lfm3" else {}
    reference.copy_reference(model_type, tmp_path, **changes)
    ids = reference.prompt_ids()
    expected = tiny.Bench(tmp_path).last_logits(ids)
    monkeypatch.setattr(tiny, "load_weights", stream_weights)
    # Memory that was just freed: without values of its own a tensor has these.
    _ = torch.full((64, 2**16), torch.nan)
    assert_same_logits(tiny.Bench(tmp_path).last_logits(ids), expected)
