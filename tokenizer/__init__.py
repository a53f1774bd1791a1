"""Text to ids and back, and chat templates. No torch.

Byte-level BPE is exact: the ids are those of merging by rank, found without merging, by
longest match over a trie of the vocabulary with a check that neighbouring tokens are
compatible, and backtracking. A text of n bytes costs O(n · longest token) whatever it says,
each pair of neighbours merged once and remembered. `bpe.py` has the reasons; the idea is that
of the Rust crate `bpe` (rust-gems). Words already seen come from a bounded cache.

SentencePiece's BPE goes the same way; its Unigram is Viterbi's algorithm over the same trie.
A `tokenizer.model` gives the ids of the library `sentencepiece`, a `tokenizer.json` those of
`tokenizers`. The two differ now and then for what was one vocabulary: merges cannot say that
scores are equal, sums are rounded otherwise, rules of normalisation are looked up otherwise.

Text that somebody wrote never becomes a control token: `encode` knows none, and a chat
template's own are told from those in messages by where they come from (`provenance.py`).
"""

from swiftchat.tokenizer.stop import StopMatcher
from swiftchat.tokenizer.stream import TokenStream
from swiftchat.tokenizer.tokenizer import Tokenizer

__all__ = ["StopMatcher", "TokenStream", "Tokenizer"]
