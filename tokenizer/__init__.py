"""Text to ids and back, and chat templates. No torch.

    from swiftchat.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(Path("model-directory"))  # or one of its vocabulary files
    ids = tokenizer.encode("Hello")         # no BOS, and never a control token
    ids = tokenizer.prompt([{"role": "user", "content": "Hello"}]).ids
    text = tokenizer.decode(ids)
    stream = tokenizer.stream()             # takes ids one at a time, gives whole characters
    tokenizer.vocab_size, tokenizer.special_tokens

The file decides which algorithm is used and whose ids it gives; n is the length of the text:

| kind | files | ids of | algorithm |
|---|---|---|---|
| byte-level BPE | `tokenizer.json`; `vocab.json` + `merges.txt` | `tokenizers` | exact BPE |
| byte-level BPE | `*.tiktoken`, `tiktoken.model`, Meta's `tokenizer.model` | `tiktoken` | same |
| byte-level BPE | `tekken.json` | `mistral-common` | exact BPE |
| SentencePiece BPE | `tokenizer.model` | `sentencepiece` | exact BPE |
| | `tokenizer.json` | `tokenizers` | exact BPE |
| SentencePiece Unigram | `tokenizer.model` | `sentencepiece` | Viterbi, O(n · longest piece) |
| | `tokenizer.json` | `tokenizers` | the same |

**Exact BPE** gives the ids of merging by rank. Words of up to 32 symbols are merged. Longer words
are encoded by longest match over a trie of the vocabulary, with a check that neighboring tokens are
compatible, and backtracking: O(n · longest token) for any text (`core/bpe.py`; the idea is from the
Rust crate `bpe`). The rank of a pair is the index of the merge, the rank of the result in a file
of tiktoken, or the negative score of the result in SentencePiece's.

**Words** are the matches of the split pattern, run by `regex` under a time limit; known words come
from a bounded cache. **Added tokens** are matched first, leftmost and longest, in one pass. A
vocabulary of 128,000 tokens loads in 0.25 s, most of it JSON parsing; trie nodes
are made on demand.

The two libraries for SentencePiece differ in rare cases: merges cannot express equal scores, sums
are rounded differently, and normalization rules are matched differently. For characters newer than
a library's Unicode tables, ids depend on that version; `regex` here is usually newer than others.

GGUF files are read by `swiftchat.weights`, which this package does not import:
`Tokenizer.from_files(tokenizer_files(GgufFile.open(path).metadata))`.

Tokens that the files beside a vocabulary declare have the ids that transformers gives them
(`huggingface/declared_tokens.py`): those of the vocabulary, or the next ones.

Untrusted text never becomes a control token: `encode` recognizes none, and `template/provenance.py`
separates a template's own text from messages, tools and other variables. Invalid files raise
`swiftchat.errors.BadModelFile`, which names the wrong field.
"""

from swiftchat.tokenizer.core.stop_strings import StopMatcher
from swiftchat.tokenizer.core.stream import TokenStream
from swiftchat.tokenizer.prompt import Prompt
from swiftchat.tokenizer.tokenizer import Tokenizer

__all__ = ["Prompt", "StopMatcher", "TokenStream", "Tokenizer"]
