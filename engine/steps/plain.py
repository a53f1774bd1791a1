"""The runner that takes every step."""

from swiftchat.engine.model.decoder import Decoder
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.steps.runner import StepInputs, StepLogits


class PlainRunner:
    """Computes the logits of any step with the decoder's operations, one by one."""

    def __init__(self, decoder: Decoder, cache: KVCache) -> None:
        self._decoder, self._cache = decoder, cache

    def compute(self, inputs: StepInputs) -> StepLogits:
        return StepLogits(self._decoder.forward(inputs.batch, self._cache))
