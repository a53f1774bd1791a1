"""The key of a cache on disk: an update of the program does not change it."""

from dataclasses import replace

from swiftchat.engine.kv_store.identity import CacheIdentity
from swiftchat.engine.kv_store.run_file import RunLayout
from swiftchat.weights.architectures.config import read_model_config
from swiftchat.weights.architectures.stated import stated

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 400,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
}


def test_the_key_of_version_3() -> None:
    """Caches of every user are lost if this changes; then `_VERSION` must change too."""
    config = read_model_config(LLAMA)
    identity = CacheIdentity(
        model="/models/m",
        digest="0" * 64,
        dtype="bfloat16",
        layout=RunLayout(64, (("kv0", "BF16", (2, 64, 4, 16)),)),
        computed={"config": stated(config), "dtype": "auto", "long_angles": False, "heads": ""},
    )
    assert identity.key == "2fd4a23451084c9c2766b74ef101321e"
    assert replace(identity, model="/moved/m").key == identity.key
    for other in (
        replace(identity, digest="1" * 64),
        replace(identity, dtype="int8"),
        replace(identity, layout=RunLayout(32, identity.layout.tensors)),
        replace(identity, computed={**identity.computed, "long_angles": True}),
    ):
        assert other.key != identity.key
