"""A small `tekken.json`."""

import base64
from typing import Any


def tekken(**changes: Any) -> dict[str, Any]:
    """Return a `tekken.json` with the first 14 control tokens and a padded vocabulary."""
    tokens = [*(bytes([byte]) for byte in range(256)), b"ab", b"abc", b" Vi\xe1\xbb\x87t", b"pad"]
    names = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    names += ["[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"]
    names += ["[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]"]
    entries = [{"rank": n, "token_str": name, "is_control": True} for n, name in enumerate(names)]
    return {
        "config": {
            "pattern": r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s+(?!\S)|\s+",
            "num_vocab_tokens": len(tokens),
            "default_vocab_size": 20 + len(tokens) - 1,
            "default_num_special_tokens": 20,
            "version": "v11",
        },
        "vocab": [
            {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
            for rank, token in enumerate(tokens)
        ],
        "special_tokens": entries,
        **changes,
    }
