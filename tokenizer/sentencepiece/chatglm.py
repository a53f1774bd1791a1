"""What ChatGLM's tokenizers do beyond their SentencePiece vocabulary."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.tokenizer.core.added_tokens import AddedToken
from swiftchat.tokenizer.sentencepiece.model import SentencePieceModel

__all__ = ["SpacePieces", "chatglm_tokens"]

# ChatGLM-6B has its control tokens among the pieces, its successors have them behind these.
_WITHIN = ("[MASK]", "[gMASK]", "[sMASK]", "<unused_0>", "<sop>", "<eop>", "<ENC>", "<dBLOCK>")
_BEHIND = (
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
    """Pieces that stand for a line break, a tab, and runs of spaces: <n>, <|tab|>, <|blank_N|>.

    Text is written with them before SentencePiece sees it, which would lose such spaces. In
    decoding each becomes again what it stands for, wherever it is. Both take O(text).
    (`_preprocess` and `decode` of `SPTokenizer` in ChatGLM-6B's tokenization_chatglm.py.)
    """

    def __init__(self, pieces: Mapping[str, int]) -> None:
        """Take those of the vocabulary; runs have pieces from 2 up to some length, usually 80."""
        self.surfaces: dict[str, str] = {}
        self._longest = 1
        if "<n>" in pieces and "<|tab|>" in pieces:
            self.surfaces = {"<n>": "\n", "<|tab|>": "\t"}
            while (blank := f"<|blank_{self._longest + 1}|>") in pieces:
                self._longest += 1
                self.surfaces[blank] = " " * self._longest

    def write(self, text: str) -> str:
        """Return `text` with the pieces in place of its white space, if there are any."""
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
    """The control tokens of a model whose `tokenizer_config.json` names `ChatGLMTokenizer`.

    ChatGLM2 lacks the last four, which none of its texts has either. Raises `BadModelFile` for
    the first release of ChatGLM-6B, which had ids of images before those of the pieces.
    """
    if config.get("tokenizer_class") != "ChatGLMTokenizer":
        return
    ids = {piece.text: number for number, piece in enumerate(model.pieces)}
    if "<n>" in ids:
        if config.get("num_image_tokens"):
            raise BadModelFile(
                "tokenizer_config.json: num_image_tokens is not 0, which is not supported"
            )
        within = (AddedToken(ids[text], text, special=True) for text in _WITHIN if text in ids)
        yield from within
    else:
        for number, text in enumerate(_BEHIND, start=len(model.pieces)):
            yield AddedToken(number, text, special=True)
