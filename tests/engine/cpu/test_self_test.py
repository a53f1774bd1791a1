"""The self-test passes for every variant and finds wrong kernels."""

from typing import Any

import pytest
import torch

from swiftchat.engine.cpu import back_end, self_test
from swiftchat.engine.cpu.back_end import NativeBackEnd
from swiftchat.engine.cpu.library import VARIABLE
from tests.support.native.libraries import VARIANT_NAMES
from tests.support.native.ops import each_variant, pool


@each_variant
@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_kernels_pass(variant: str, num_threads: int) -> None:
    assert self_test.self_test(pool(variant, num_threads)) is None


@each_variant
@pytest.mark.parametrize("name", ["residual", "int4 matmul", "attention"])
@pytest.mark.parametrize("wrong", [1.1, torch.nan])
def test_wrong_results_are_found(
    variant: str, name: str, wrong: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = self_test._Layer
    run = layer.run

    def run_wrongly(*arguments: Any) -> dict[str, torch.Tensor]:
        found = run(*arguments)
        found[name][-1].mul_(wrong)
        return found

    monkeypatch.setattr(layer, "run", run_wrongly)
    fault = self_test.self_test(pool(variant))
    assert fault is not None
    assert fault.startswith(f"{name} of 1 rows errs by ")


def test_torch_computes_if_the_kernels_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(back_end, "self_test", lambda _: "attention of 1 rows errs by 2")
    variant = VARIANT_NAMES[0]
    opened = NativeBackEnd.open({VARIABLE: variant}, 1)
    expected = f"the {variant} kernels failed their test: attention of 1 rows errs by 2"
    assert opened == expected
