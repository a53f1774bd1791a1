"""Files of torch.save run directly, with the logits of safetensors."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.support import tiny


@pytest.mark.parametrize("name", [*tiny.MECHANISMS, "phi3", "chatglm3"])
def test_bin_files_give_the_same_logits(name: str, tmp_path: Path) -> None:
    tiny.make(name, tmp_path / "theirs")
    (tmp_path / "ours").mkdir()
    shutil.copy(tmp_path / "theirs" / "config.json", tmp_path / "ours")
    tensors = load_file(tmp_path / "theirs" / "model.safetensors")
    torch.save(tensors, tmp_path / "ours" / "pytorch_model.bin")
    ids = tiny.random_ids(11)
    expected = tiny.Bench(tmp_path / "theirs").last_logits(ids)
    actual = tiny.Bench(tmp_path / "ours").last_logits(ids)
    # Not bitwise: torch picks its fp32 GEMM by the alignment of the mapped tensors. Summing at most
    # 2**10 products in another order moves a logit by about 2**10 * 2**-24 of its scale.
    torch.testing.assert_close(actual, expected, rtol=0, atol=2**-14 * float(expected.abs().max()))
