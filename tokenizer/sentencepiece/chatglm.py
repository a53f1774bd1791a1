"""ChatGLM's additions to its SentencePiece vocabulary."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.tokenizer.core.added_tokens import AddedToken
from swiftchat.tokenizer.sentencepiece.model import SentencePieceModel

# ChatGLM-6B's control tokens are pieces; its successors' follow the pieces.
_PIECE_TOKENS = (
    "[MASK]",
    "[gMASK]",
    "[sMASK]",
    "<unused_0>",
    "<sop>",
    "<eop>",
    "<ENC>",
    "<dBLOCK>",
)
_APPENDED_TOKENS = (
    "[MASK]",
    "[gMASK]",
    "[sMASK]",
    "sop",
    "eop",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
)
_SPACES = re.compile("[\n\t]| {2,}")


class SpacePieces:
    """Pieces for a line break, a tab, and runs of spaces: <n>, <|tab|>, <|blank_N|>.

    They replace white space before SentencePiece normalizes the text, which would drop it; decoding
    reverses this at any position. Both take O(text).
    (`_preprocess` and `decode` of `SPTokenizer` in ChatGLM-6B's tokenization_chatglm.py.)
    """

    def __init__(self, pieces: Mapping[str, int]) -> None:
        """Find the pieces in the vocabulary; runs have 2 to usually 80 spaces."""
        self.surfaces: dict[str, str] = {}
        self._longest = 1
        if "<n>" in pieces and "<|tab|>" in pieces:
            self.surfaces = {"<n>": "\n", "<|tab|>": "\t"}
            while (blank := f"<|blank_{self._longest + 1}|>") in pieces:
                self._longest += 1
                self.surfaces[blank] = " " * self._longest

    def write(self, text: str) -> str:
        """Return `text` with white space replaced by the pieces, if the vocabulary has them."""
        return _SPACES.sub(self._piece, text) if self.surfaces else text

    def _piece(self, match: re.Match[str]) -> str:
        if not match[0].startswith(" "):
            return "<n>" if match[0] == "\n" else "<|tab|>"
        whole, rest = divmod(len(match[0]), self._longest)
        if self._longest == 1:
            return match[0]
        blanks = f"<|blank_{self._longest}|>" * whole
        return blanks + (f"<|blank_{rest}|>" if rest > 1 else " " * rest)


def chatglm_tokens(model: SentencePieceModel, config: Mapping[str, Any]) -> Iterator[AddedToken]:
    """Yield the control tokens if `tokenizer_config.json` names `ChatGLMTokenizer`.

    ChatGLM2 lacks the last four, and its texts do not contain them. Raises `BadModelFile` for the
    first release of ChatGLM-6B, whose image ids precede those of the pieces.
    """
    if config.get("tokenizer_class") != "ChatGLMTokenizer":
        return
    ids = {piece.text: number for number, piece in enumerate(model.pieces)}
    if "<n>" in ids:
        if config.get("num_image_tokens"):
            raise BadModelFile(
                "tokenizer_config.json: num_image_tokens is not 0, which is not supported"
            )
        for text in _PIECE_TOKENS:
            if text in ids:
                yield AddedToken(ids[text], text, special=True)
    else:
        for number, text in enumerate(_APPENDED_TOKENS, start=len(model.pieces)):
            yield AddedToken(number, text, special=True)
