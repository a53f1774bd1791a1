"""Which models the tests run from which files on which device, read from the tests' parameters.

A test that has gone, or lost a parameter, is gone from here and so from docs/models.md.
"""

from collections.abc import Callable, Iterable
from typing import Any

import gguf_models
import test_engine_gpu
import test_engine_gpu_sources
import test_engine_ranks
import test_weights_bin_families
import test_weights_gguf_families
import test_weights_gpt2_sources
import test_weights_quantised
import test_weights_sources
import tiny

Test = Callable[..., Any]


def parameters(test: Test) -> list[str]:
    """The names or forms that the test is run with, one after the other."""
    marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
    for mark in marks:
        if mark.args[0] in ("name", "form"):
            return [*mark.args[1]]
    raise AssertionError(f"{test.__name__} has no parameter name or form")


# Names of models of `tiny`. Those of the first are its fixture's, and test_engine_decoder's.
BY_FAMILY: dict[str, dict[str, Iterable[str]]] = {
    "safetensors": {
        "CPU": [*tiny.VARIANTS, *tiny.FAMILIES, *tiny.REPACKED],
        "GPU": [
            *test_engine_gpu.CLOSELY,
            *parameters(test_engine_gpu.test_every_familys_ids_equal_the_cpus),
        ],
    },
    ".bin": {"CPU": parameters(test_weights_bin_families.test_bin_files_give_the_same_logits)},
    "GGUF": {
        "CPU": [
            gguf_models.CASES[name][0]
            for name in parameters(
                test_weights_gguf_families.test_facts_tensors_and_logits_come_back
            )
        ],
    },
    "two ranks": {"CPU": parameters(test_engine_ranks.test_two_ranks_equal_one)},
    "files cut for ranks": {
        "CPU": parameters(test_engine_ranks.test_ranks_on_files_cut_beforehand_equal_one)
    },
}

# Layouts and forms of one model: what it is, and the tests that run them on each device.
BY_LAYOUT: dict[str, dict[str, Test]] = {
    "Llama": {
        "CPU": test_weights_sources.test_every_layout_gives_the_same_model,
        "GPU": test_engine_gpu_sources.test_llama_of_every_layout,
    },
    "GPT-2": {
        "CPU": test_weights_gpt2_sources.test_every_layout_gives_the_same_model,
        "GPU": test_engine_gpu_sources.test_gpt2_of_every_layout,
    },
    "Llama, quantised": {
        "CPU": test_weights_quantised.test_it_computes_what_the_dequantised_weights_compute,
        "GPU": test_engine_gpu_sources.test_every_quantised_form,
    },
}
