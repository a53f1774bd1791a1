"""The configuration of a model, read from `config.json` and checked."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.multimodal import language_model
from swiftchat.weights.architectures.parts.fields import (
    MAX_CONTEXT,
    MAX_EXPERTS,
    invalid,
    without_keys,
)
from swiftchat.weights.architectures.parts.latent import LatentAttention
from swiftchat.weights.architectures.parts.layers import (
    LayerSizes,
    PerLayerEmbeddings,
    Streams,
)
from swiftchat.weights.architectures.parts.mixers import StateMixer
from swiftchat.weights.architectures.parts.prefix_lm import PrefixLM
from swiftchat.weights.architectures.parts.rope import QueryGrowth, RopeConfig
from swiftchat.weights.architectures.parts.router import RouterConfig
from swiftchat.weights.architectures.readers import class_name, readers, windows
from swiftchat.weights.architectures.registry import architecture_of
from swiftchat.weights.architectures.unsupported_keys import ignored_keys
from swiftchat.weights.architectures.variants import VARIANTS


@dataclass(frozen=True)
class ModelConfig:
    """A decoder described by data; sizes in elements, `max_context_tokens` in tokens.

    `architecture` is the Hugging Face class name and `family` the short name of its table entry.
    `sliding_window` None means full attention. `dtype` is the dtype of the saved weights. The
    fields with defaults are those in which an architecture differs from Llama:

    Norms. `norm` is "rms" or "layer", with a bias if `norm_bias`; with `norm_unit_offset` the
    weights are stored minus one. `norm_order` is the place of the norms: "pre" (input of a
    branch), "output" (output of a branch), "sandwich" (both), "post" (residual stream after the
    addition), "stream" (residual stream before the branch; the residual is multiplied by
    `stream_scale`, before mixers by `mixer_stream_scale` and before MLPs by `mlp_stream_scale`, if
    they are set); in `output_norm_layers` it is "output". `qk_norm` normalizes queries and keys
    over each "head", over each of the "heads" with separate weights, or over the whole "width";
    `qk_norm_after_rope`: after the rotation. Without `norm_weights` (`qk_norm_weights`) these norms
    have no weights; layers without rotation then have no norms of queries and keys. `inner_norms`
    come before the last matrix of each branch. Branches are multiplied by `residual_scale` before
    they are added to the stream: the stream is computed divided by it, and `norm_eps` is divided by
    its square.

    Layers. `parallel_residual`: attention and MLP read the same residual stream, through one
    norm if `shared_norm`. `gated`: the MLP has a gate; `interleaved_gate`: gate and up rows
    alternate; `gate_limit`: gate and up are clamped to it, and 1 is added to up.

    Attention. Scores are divided by √`query_scalar`, None: √`head_dim`. `attention_sinks`: each
    head has a learned logit in its softmax without a value. `rope` None: no rotary embedding.
    `full_layers` ignore `sliding_window`; the other layers use `local_rope` if it is set.
    With `attention_chunk` layers but the full ones attend only within chunks of so many tokens.
    `unrotated_layers` have no rotary embedding. `learned_positions` is the number of position
    embeddings; row `position_offset` belongs to position 0. `alibi`: linear biases, multiplied by
    `alibi_scale`. `attention_softcap` and `logit_softcap` c replace x by c·tanh(x/c).
    `prefix_lm`: prompts have a bidirectional prefix. `clip_qkv` limits the size of queries, keys
    and values. `query_growth` scales queries at late positions. With `attention_gate` the
    attention's output is multiplied by the sigmoid of a projection of its input, which with
    `gate_by_head` has one element for each head; `softplus_gate`: by the softplus. `latent`: keys
    and values are functions of a latent; `head_dim` is then the width of queries and keys. With
    `value_size` values have another width than keys.  `windowed_sinks`: only layers with a window
    have `attention_sinks`.

    `mixer_layers` have a `mixer` with a state of fixed size instead of attention, or if
    `mixer_with_attention` beside it, on the same input; `mixer_activation` is that of the mixers,
    None: `activation`. With `single_branch` a layer has one branch: `mlp_layers` have only an MLP,
    the others none. `attention_out_scale`, `mixer_out_scale`, `gate_scale` and `mlp_out_scale`
    multiply the outputs of attention, mixer, gate (before the activation) and MLP. The scale of the
    attention's input, `attention_in_scale`, is part of `query_scalar` and `attention_out_scale`.

    `layer_sizes` are those of each layer where layers differ, otherwise empty; `of_layer` applies
    them. Layer i reads the keys and values of layer `kv_sources[i]`; if it is another one, layer i
    has only queries. Empty: every layer has its own. In `keys_as_values` layers the keys before
    their norm and rotation are the values. `value_norm`: values have an RMSNorm without weights.
    `layer_scales`: the stream is multiplied by a number of the layer at its end. With
    `per_layer_embeddings` every layer also adds a function of its own embedding of the token.
    `streams`: there are several residual streams. `gate_sparsity` is the share of a layer's gates
    that become 0 if they are normally distributed; empty: none.

    Embeddings of `embedding_size`, if set, are projected to and from `hidden_size`. The file has
    `extra_embeddings` behind those of the vocabulary, for other things than text. Logits are
    multiplied by `logit_scale`. Layer i is layer `file_layers[i]` of the file, unless this is
    empty.

    MoE. `num_experts` 0: a plain MLP. Otherwise each token uses `experts_per_token` experts of
    width `expert_size`, which `router` chooses and weighs; `expert_bias`: router and experts have
    biases. `shared_expert_size` is the width of an expert for all tokens, 0: none; its output is
    multiplied by the sigmoid of a projection if `shared_expert_gate`. `dense_layers` have a plain
    MLP. The sum of all experts is multiplied by `experts_out_scale`. With `expert_latent_size` the
    experts read and write a projection of that width.
    `mlp_and_experts`: the layers have both, each with norms of its own, and their outputs are
    added; the router reads the stream through a norm of its own and has a factor for each expert.
    `shortcut_experts`: layers with experts have an MLP too, on the same input, and the output of
    the experts is added to the stream after the next layer, which has none. Behind the experts the
    router may choose `identity_experts`, whose output is their input times `identity_scale`.

    `ignored_keys` are keys of `config.json` that this architecture ignores, as in transformers,
    though they change the computation of others.
    """

    family: str
    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_context_tokens: int
    norm_eps: float
    activation: str
    rope: RopeConfig | None
    attention_bias: bool
    output_bias: bool
    mlp_bias: bool
    tied_embeddings: bool
    sliding_window: int | None
    bos_id: int | None
    eos_ids: tuple[int, ...]
    dtype: str
    norm: str = "rms"
    norm_bias: bool = False
    norm_unit_offset: bool = False
    norm_order: str = "pre"
    stream_scale: float = 1.0
    mixer_stream_scale: float | None = None
    mlp_stream_scale: float | None = None
    output_norm_layers: frozenset[int] = frozenset()
    final_norm: bool = True
    inner_norms: bool = False
    embedding_norm: bool = False
    parallel_residual: bool = False
    shared_norm: bool = False
    gated: bool = True
    interleaved_gate: bool = False
    gate_limit: float | None = None
    qk_norm: str | None = None
    qk_norm_after_rope: bool = False
    qk_norm_weights: bool = True
    norm_weights: bool = True
    residual_scale: float = 1.0
    clip_qkv: float | None = None
    query_growth: QueryGrowth | None = None
    attention_gate: bool = False
    gate_by_head: bool = False
    softplus_gate: bool = False
    value_size: int | None = None
    latent: LatentAttention | None = None
    logit_scale: float = 1.0
    query_scalar: float | None = None
    local_rope: RopeConfig | None = None
    full_layers: frozenset[int] = frozenset()
    unrotated_layers: frozenset[int] = frozenset()
    attention_chunk: int | None = None
    learned_positions: int = 0
    position_offset: int = 0
    alibi: bool = False
    alibi_scale: float = 1.0
    attention_sinks: bool = False
    windowed_sinks: bool = False
    embedding_scale: float = 1.0
    embedding_size: int | None = None
    extra_embeddings: int = 0
    file_layers: tuple[int, ...] = ()
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    lm_head_bias: bool = False
    num_experts: int = 0
    experts_per_token: int = 0
    router: RouterConfig = field(default_factory=RouterConfig)
    expert_size: int = 0
    expert_bias: bool = False
    shared_expert_size: int = 0
    shared_expert_gate: bool = False
    experts_out_scale: float = 1.0
    expert_latent_size: int | None = None
    dense_layers: frozenset[int] = frozenset()
    prefix_lm: PrefixLM | None = None
    mixer: StateMixer | None = None
    mixer_layers: frozenset[int] = frozenset()
    mixer_with_attention: bool = False
    mixer_activation: str | None = None
    single_branch: bool = False
    mlp_layers: frozenset[int] = frozenset()
    attention_in_scale: float = 1.0
    attention_out_scale: float = 1.0
    mixer_out_scale: float = 1.0
    gate_scale: float = 1.0
    mlp_out_scale: float = 1.0
    layer_sizes: tuple[LayerSizes, ...] = ()
    kv_sources: tuple[int, ...] = ()
    keys_as_values: frozenset[int] = frozenset()
    value_norm: bool = False
    layer_scales: bool = False
    per_layer_embeddings: PerLayerEmbeddings | None = None
    mlp_and_experts: bool = False
    shortcut_experts: bool = False
    identity_experts: int = 0
    identity_scale: float = 1.0
    streams: Streams | None = None
    gate_sparsity: tuple[float, ...] = ()
    ignored_keys: tuple[str, ...] = ()

    @property
    def longest_context_tokens(self) -> int:
        """The longest context that a user may ask for: rotary embeddings may be stretched to it.

        `max_context_tokens` is what the model was published for. Files whose embeddings a user
        stretches, as pages of models describe, keep the shorter one.
        """
        rope = self.rope
        if rope is None or rope.scaling not in ("linear", "yarn"):
            return self.max_context_tokens
        is_yarn = rope.scaling == "yarn"
        original = rope.original_context_tokens if is_yarn else self.max_context_tokens
        return min(MAX_CONTEXT, max(self.max_context_tokens, int(original * rope.factor)))

    @property
    def attention_scale(self) -> float:
        """The factor that attention scores are multiplied by."""
        scalar = self.head_dim if self.query_scalar is None else self.query_scalar
        return float(scalar**-0.5)

    @property
    def attention_layers(self) -> list[int]:
        """The layers with keys and values of their own."""
        layers = range(self.num_layers)
        return [i for i in layers if self.has_attention(i) and self.kv_source(i) == i]

    def has_attention(self, layer: int) -> bool:
        """Whether a layer has keys and values."""
        if layer in self.mlp_layers:
            return False
        return self.mixer_with_attention or layer not in self.mixer_layers

    def has_mlp(self, layer: int) -> bool:
        """Whether a layer has an MLP."""
        return not self.single_branch or layer in self.mlp_layers

    @property
    def ropes(self) -> list[tuple[RopeConfig, int]]:
        """The rotary embeddings, those of layers with a window last, each with a layer of its own.

        The layer is 0 for one that no layer has.
        """
        local = {self.window(i) is not None: i for i in range(self.num_layers)}
        if self.rope is None or self.local_rope is None:
            return [] if self.rope is None else [(self.rope, 0)]
        return [(self.rope, local.get(False, 0)), (self.local_rope, local.get(True, 0))]

    @property
    def rope_width(self) -> int:
        """The elements of a head that have rotary embeddings or follow them."""
        return self.head_dim if self.latent is None else self.latent.rope_dim

    @property
    def value_dim(self) -> int:
        """The elements of a head's value."""
        if self.latent is not None:
            return self.latent.value_dim
        return self.head_dim if self.value_size is None else self.value_size

    @property
    def cached_rows(self) -> tuple[int, int]:
        """The rows of a token in a layer's KV cache, and their elements."""
        if self.latent is not None:
            return 1, self.latent.cached_dim
        return 2 * self.num_kv_heads, self.head_dim

    def window(self, layer: int) -> int | None:
        """Return how many of the last tokens a layer attends to; None: all."""
        return None if layer in self.full_layers else self.sliding_window

    def chunk(self, layer: int) -> int | None:
        """Return the tokens of the chunks within which a layer attends; None: there are none."""
        return None if layer in self.full_layers else self.attention_chunk

    def growth(self, layer: int) -> QueryGrowth | None:
        """Return how the queries of a layer grow with their position; None: they do not."""
        growth = self.query_growth
        if growth and growth.unrotated_only and layer not in self.unrotated_layers:
            return None
        return growth

    def kv_source(self, layer: int) -> int:
        """Return the layer whose keys and values a layer reads."""
        return self.kv_sources[layer] if self.kv_sources else layer

    def of_layer(self, layer: int) -> "ModelConfig":
        """Return the config with the sizes of a layer; itself if all layers have the same."""
        if not self.layer_sizes:
            return self
        return replace(self, **vars(self.layer_sizes[layer]), layer_sizes=())

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Self:
        """Read a parsed `config.json`.

        Raises `BadModelFile` with the name of the first invalid or unsupported field.
        """
        if not isinstance(config, Mapping):
            raise BadModelFile("config.json is not a JSON object")
        config = language_model(config)
        name = class_name(config)
        architecture = architecture_of(name)
        shared_class, variant = VARIANTS.get(str(config.get("model_type")), (None, architecture))
        if name == shared_class:
            architecture = variant
        config = architecture.standard_fields(config)
        supported = architecture.supported_keys | (
            {"sliding_window"} if architecture.windowed else set()
        )
        ignored = ignored_keys(config, supported, architecture.rejected_keys)
        config = without_keys(config, ignored)
        values = dict(architecture.overrides(config))
        layer_types = values.pop("layer_types", None)
        for field_name, read in readers(config, architecture).items():
            if field_name not in values:
                values[field_name] = read()
        values.setdefault("output_bias", values["attention_bias"])
        if architecture.windowed:
            switched = "use_sliding_window" in architecture.defaults
            window, full_layers = windows(config, layer_types, switched=switched)
            values |= {"sliding_window": window, "full_layers": full_layers}
        made = cls(
            family=architecture.name,
            architecture=name,
            ignored_keys=ignored,
            **{"sliding_window": None, **values},
        )
        if made.num_experts * made.num_layers > MAX_EXPERTS:
            raise invalid("num_experts", f"at most {MAX_EXPERTS} in all layers", made.num_experts)
        return made
