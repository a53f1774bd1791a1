"""Models, file formats and devices that tests cover, read from the parameters of the tests.

Removing a test or a parameter therefore changes docs/models.md.
"""

from collections.abc import Callable, Iterable
from typing import Any

from tests.engine.comm import test_communicator
from tests.engine.generation import test_engine_gpu, test_swept_gpu
from tests.engine.load import test_gpu_sources
from tests.engine.model import test_sweep
from tests.support import tiny
from tests.support.gguf import models as gguf_models
from tests.support.reference import ONLY_MULTIMODAL, SWEPT_TYPES
from tests.weights.formats import test_bin_architectures
from tests.weights.gguf import test_architectures
from tests.weights.quantization import test_methods
from tests.weights.sources import test_gpt2, test_sources

Test = Callable[..., Any]


def parameters(test: Test) -> list[str]:
    """Return the values of a test's parameter `name`, in order."""
    marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
    for mark in marks:
        if mark.args[0] == "name":
            return [*mark.args[1]]
    raise AssertionError(f"{test.__name__} has no parameter `name`")


# Names of `tiny` models by format and device. CPU tests for safetensors take them from a fixture.
BY_ARCHITECTURE: dict[str, dict[str, Iterable[str]]] = {
    "safetensors": {
        "CPU": [*tiny.VARIANTS, *tiny.FAMILIES, *tiny.REPACKED, *SWEPT_TYPES, *ONLY_MULTIMODAL],
        "GPU": [
            *test_engine_gpu.MODELS,
            *parameters(test_engine_gpu.test_ids_of_every_architecture_equal_the_cpu),
            *parameters(test_swept_gpu.test_ids_equal_the_cpu),
        ],
    },
    ".bin": {"CPU": parameters(test_bin_architectures.test_bin_files_give_the_same_logits)},
    "GGUF": {
        "CPU": [
            gguf_models.CASES[name][0]
            for name in parameters(
                test_architectures.test_config_tensors_and_logits_survive_conversion
            )
        ],
    },
    "ranks": {
        "CPU": [
            *parameters(test_communicator.test_two_ranks_equal_one),
            *parameters(test_communicator.test_four_ranks_with_shared_kv_heads_equal_one),
            *test_sweep.DIVIDED,
        ]
    },
    "rank files": {"CPU": parameters(test_communicator.test_ranks_loading_rank_files_equal_one)},
}

# The test of a model's layouts, by model and device.
BY_LAYOUT: dict[str, dict[str, Test]] = {
    "Llama": {
        "CPU": test_sources.test_all_layouts_convert_to_the_same_model,
        "GPU": test_gpu_sources.test_llama_checkpoints_of_every_layout_on_a_gpu,
    },
    "GPT-2": {
        "CPU": test_gpt2.test_all_layouts_convert_to_the_same_model,
        "GPU": test_gpu_sources.test_gpt2_checkpoints_of_every_layout_on_a_gpu,
    },
    "Llama, quantized": {
        "CPU": test_methods.test_converted_model_equals_the_dequantized_weights,
        "GPU": test_gpu_sources.test_every_quantization_format_on_a_gpu,
    },
}
