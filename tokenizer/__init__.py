"""Text to ids and back, and chat templates. No torch.

    from swiftchat.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(Path("model-directory"))  # or one of its vocabulary files
    ids = tokenizer.encode("Hello")         # no BOS, and never a control token
    ids = tokenizer.apply_template([{"role": "user", "content": "Hello"}])
    text = tokenizer.decode(ids)
    stream = tokenizer.stream()             # takes ids one at a time, gives whole characters
    tokenizer.vocab_size, tokenizer.special_tokens

Which algorithm, and whose ids they are, depends on the file; n is the length of the text.

| kind | files | ids of | algorithm |
|---|---|---|---|
| byte-level BPE | `tokenizer.json`; `vocab.json` + `merges.txt` | `tokenizers` | exact BPE |
| byte-level BPE | `*.tiktoken`, Meta's `tokenizer.model` | `tiktoken` | exact BPE |
| SentencePiece BPE | `tokenizer.model` | `sentencepiece` | exact BPE |
| | `tokenizer.json` | `tokenizers` | exact BPE |
| SentencePiece Unigram | `tokenizer.model` | `sentencepiece` | Viterbi, O(n · longest piece) |
| | `tokenizer.json` | `tokenizers` | the same |

**Exact BPE** gives the ids of merging by rank. Words of up to 32 symbols are merged. Longer ones
are encoded without merging, by longest match over a trie of the vocabulary with a check that
neighboring tokens are compatible, and backtracking: O(n · longest token) whatever the text says,
each pair of neighbors merged once and remembered. `bpe.py` has the reasons; the idea is that of
the Rust crate `bpe` (rust-gems). The rank of a pair is the place of the merge, the rank of what it
makes in tiktoken's files, or minus its score in SentencePiece's.

**Words** are what the split pattern leaves, run by `regex` under a time limit. Those already seen
come from a bounded cache. **Added tokens** are cut out first, leftmost and longest first, in one
pass. A vocabulary of 128,000 tokens loads in a quarter of a second, most of which is parsing JSON;
nodes of the trie are made when a text first reaches them.

The two libraries for SentencePiece differ now and then for what was one vocabulary: merges cannot
say that scores are equal, sums are rounded otherwise, rules of normalization are looked up
otherwise. All ids depend on the version of Unicode for characters that are newer than a library:
`regex` here is usually ahead of the others.

A GGUF file is read by `swiftchat.weights`, which this package does not import:
`Tokenizer.from_files(tokenizer_files(GgufFile.open(path).metadata))`.

Text that somebody wrote never becomes a control token: `encode` knows none, and a chat
template's own are told from those in messages, tools and other variables by where they come
from (`provenance.py`). Files are not believed: `swiftchat.errors.BadModelFile` names the field that
is wrong.
"""

from swiftchat.tokenizer.core.stop_strings import StopMatcher
from swiftchat.tokenizer.core.stream import TokenStream
from swiftchat.tokenizer.prompt import Prompt
from swiftchat.tokenizer.tokenizer import Tokenizer

__all__ = ["Prompt", "StopMatcher", "TokenStream", "Tokenizer"]
