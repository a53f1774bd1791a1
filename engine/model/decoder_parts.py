"""What a back end makes the decoder of a rank of."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from swiftchat.engine.comm.communicator import Communicator
from swiftchat.engine.comm.pipeline import Pipeline
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.model.weights import DecoderWeights
from swiftchat.weights.parallel.tensor_parallel import Shard


@dataclass(frozen=True)
class DecoderParts:
    """What a back end makes the decoder of one rank of.

    `new_cache` allocates the KV cache in a layout, `heads_first` or not. Batches have at most
    `max_tokens` tokens and `max_num_seqs` sequences. Hidden states of `hidden_layers` are read.
    """

    shard: Shard
    weights: DecoderWeights
    ranks: Communicator
    stages: Pipeline
    new_cache: Callable[[bool], KVCache]
    ctx_size_tokens: int
    max_tokens: int
    max_num_seqs: int
    hidden_layers: Collection[int] = ()
