"""The weights of a decoder whose matrices depend on the adapters of a batch."""

import dataclasses

from swiftchat.engine.linear.adapted import AdaptedWeight, Selection
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.engine.model.mixer_weights import MixerWeights
from swiftchat.engine.model.weights import DecoderWeights, LayerWeights

_LAYER_FIELDS = ("qkv", "o", "gate_up", "down")


def adapted_weights(weights: DecoderWeights, selection: Selection) -> DecoderWeights:
    """Return the weights with every matrix that adapters may change as an `AdaptedWeight`."""

    def layer(number: int, own: LayerWeights) -> LayerWeights:
        fields: dict[str, LinearWeight] = {
            name: AdaptedWeight(getattr(own, name), (name, number), selection)
            for name in _LAYER_FIELDS
            if getattr(own, name).shape[0]
        }
        mixer = None if own.mixer is None else adapted_mixer(number, own.mixer)
        return dataclasses.replace(own, mixer=mixer, **fields)  # type: ignore[arg-type]  # any field

    def adapted_mixer(number: int, own: MixerWeights) -> MixerWeights:
        return dataclasses.replace(
            own,
            project_in=AdaptedWeight(own.project_in, ("mixer_in", number), selection),
            project_out=AdaptedWeight(own.project_out, ("mixer_out", number), selection),
        )

    return dataclasses.replace(
        weights,
        layers=[layer(i, own) for i, own in enumerate(weights.layers)],
        lm_head=AdaptedWeight(weights.lm_head, ("lm_head", None), selection),
    )
