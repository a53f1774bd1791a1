"""Compare token ids with the reference libraries over megabytes of many languages.

    python benchmarks/tokenizer_corpus.py VOCABULARIES [--only NAME] [--megabytes 6]
        [--strings 100000] [--seed 0]

VOCABULARIES is a folder of *.model and *.gguf files. A SentencePiece model is compared with
`sentencepiece`, the tokenizer.json that transformers makes of it with `tokenizers`, and so is the
tokenizer.json that swiftchat makes of a byte-level GGUF. The corpus is prose and code of the Python
installation, sentences of the vocabularies' words in each script, and random characters; it is
encoded by line, in chunks of many lines, and as short random strings. Expected: no difference.
"""

import argparse
import json
import random
import re
import sysconfig
import tempfile
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece
import tokenizers

from swiftchat.tokenizer import Tokenizer
from swiftchat.weights.formats.gguf import GgufFile
from swiftchat.weights.gguf.tokenizer import tokenizer_files

SCRIPTS = {
    "Latin": "A-Za-z\u00c0-\u024f",
    "Cyrillic": "\u0400-\u04ff",
    "Chinese": "\u4e00-\u9fff",
    "Japanese": "\u3040-\u30ff",
    "Korean": "\uac00-\ud7a3",
    "Arabic": "\u0600-\u06ff",
    "Hindi": "\u0900-\u097f",
    "Thai": "\u0e00-\u0e7f",
}
WITHOUT_SPACES = ("Chinese", "Japanese", "Thai")
EMOJI = (0x1F300, 0x1F64F)
JOINERS = ["\u200d", "\ufe0f", "\U0001f3fb", "\U0001f3fd", "\U0001f3ff", "\u20e3"]
SPACES = [
    " ",
    "  ",
    "   ",
    " " * 17,
    "\n",
    "\n\n",
    "\t",
    "\r\n",
    "\u3000",
    "\xa0",
    "\u2028",
    "▁",
    "\u2003",
    "\x85",
    "\x1c",
    "\u200b",
    "\ufeff",
]
CONTROLS = [*map(chr, range(32)), "\x7f", *map(chr, range(0x80, 0xA0))]
NFC = tokenizers.normalizers.NFC()
MARKS = ["", "", "", ",", ".", "!", "。", "،", "।", "\u0301", "-", "3"]
SNIPPETS = [
    "<s>",
    "</s>",
    "<unk>",
    "<pad>",
    "<extra_id_0>",
    "<|endoftext|>",
    "<|im_end|>",
    "<0x41>",
    "<|begin_of_text|>",
    "[gMASK]",
    "sop",
    "I'LL",
    "'s",
    "\u017f",
    "12345",
    "½",
    "Ⅷ",
    "e\u0301",
    "ﬁ",
    "ｶﾞ",
    "\u1100\u1161\u11a8",
    "\u0344",
    "\u212b",
    "한",
    "Việt",
    "x²",
    "👩\u200d👧",
    "🇩🇪",
]


@dataclass(frozen=True)
class Pair:
    name: str
    ours: Callable[[str], list[int]]
    theirs: Callable[[str], list[int]]


def transformers_json(model: Path, kind: str) -> dict[str, Any]:
    """The `tokenizer.json` that transformers makes of a SentencePiece model."""
    from transformers import AutoTokenizer

    classes = {"SentencePiece BPE": "LlamaTokenizer", "SentencePiece Unigram": "T5Tokenizer"}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("tokenizer.model", "spiece.model"):
            (Path(folder) / name).write_bytes(model.read_bytes())
        config = Path(folder) / "tokenizer_config.json"
        config.write_text(json.dumps({"tokenizer_class": classes[kind]}))
        made = AutoTokenizer.from_pretrained(folder).backend_tokenizer.to_str()
    result: dict[str, Any] = json.loads(made)
    return result


def legacy(spec: dict[str, Any]) -> dict[str, Any]:
    """The same tokenizer as the first transformers versions wrote it for Llama 2."""
    prepend = {"type": "Prepend", "prepend": "▁"}
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    steps = {"type": "Sequence", "normalizers": [prepend, replace]}
    return spec | {"normalizer": steps, "pre_tokenizer": None}


def json_pair(name: str, spec: dict[str, Any]) -> Pair:
    library = tokenizers.Tokenizer.from_str(json.dumps(spec))
    ours = Tokenizer.from_json(spec)
    # `encode_rendered` recognizes control tokens, as the library does.
    return Pair(
        name,
        lambda text: ours.encode_rendered(text, []),
        lambda text: library.encode(text, add_special_tokens=False).ids,
    )


def pairs(file: Path) -> Iterator[Pair]:
    if file.suffix == ".model":
        data = file.read_bytes()
    else:
        files = tokenizer_files(GgufFile.open(file).metadata)
        if "tokenizer.json" in files:
            yield json_pair(file.name, json.loads(files["tokenizer.json"]))
            return
        data = files["tokenizer.model"]
    ours = Tokenizer.from_sentencepiece(data)
    processor = sentencepiece.SentencePieceProcessor(model_proto=data)
    yield Pair(file.name, ours.encode, processor.encode)
    if file.suffix == ".model":
        spec = transformers_json(file, ours.kind)
        yield json_pair(f"{file.name} as tokenizer.json", spec)
        if ours.kind == "SentencePiece BPE":
            yield json_pair(f"{file.name} as legacy tokenizer.json", legacy(spec))


def words(files: Iterable[Path]) -> dict[str, list[str]]:
    """The vocabularies' words by script."""
    found: dict[str, set[str]] = {script: set() for script in SCRIPTS}
    for file in files:
        if file.suffix == ".model":
            tokenizer = Tokenizer.from_sentencepiece(file.read_bytes())
        else:
            made = tokenizer_files(GgufFile.open(file).metadata)
            if "tokenizer.json" not in made:
                continue
            tokenizer = Tokenizer.from_json(json.loads(made["tokenizer.json"]))
        for text in (tokenizer.decode([n]).strip() for n in range(tokenizer.vocab_size)):
            for script, characters in SCRIPTS.items():
                if re.fullmatch(f"[{characters}]+", text):
                    found[script].add(text)
    return {script: sorted(texts) for script, texts in found.items()}


def installed(size: int) -> Iterator[str]:
    """Prose and code: the help topics and the sources of the standard library."""
    from pydoc_data.topics import topics

    yield from "\n".join(topics.values()).split("\n")
    for source in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text = source.read_text(errors="replace")
        yield from text.split("\n")
        size -= len(text)
        if size < 0:
            return


def sentence(vocabulary: list[str], glue: str, random: random.Random) -> str:
    chosen = random.choices(vocabulary, k=random.randrange(1, 40))
    marks = random.choices(MARKS, k=len(chosen))
    return glue.join(word + mark for word, mark in zip(chosen, marks, strict=True))


@cache
def is_known(character: str) -> bool:
    """Return whether all libraries support a character; `tokenizers` has the NFC of Unicode 9."""
    if unicodedata.category(character) == "Cn":
        return False
    # NFC moves a known mark before the iota subscript, which sorts last.
    text = "a\u0345" + character
    return NFC.normalize_str(text) == unicodedata.normalize("NFC", text)


def hostile(random: random.Random) -> str:
    """A short random string with a random mixture of character kinds."""
    kinds: list[Callable[[], str]] = [
        lambda: chr(random.randrange(0x20, 0x7F)),
        lambda: chr(random.randrange(0x110000)),
        lambda: chr(random.randrange(0x3000)),
        lambda: chr(random.randrange(*EMOJI)) + random.choice(JOINERS),
        lambda: random.choice(SPACES),
        lambda: random.choice(CONTROLS),
        lambda: random.choice(SNIPPETS),
        lambda: random.choice("abtheors \n"),
        lambda: chr(random.randrange(0xD800, 0xE000)),
        lambda: chr(random.randrange(0x4E00, 0xA000)),
        lambda: random.randbytes(random.randrange(6)).decode("utf-8", "replace"),
        lambda: unicodedata.normalize("NFD", chr(random.randrange(0x2000))),
    ]
    weights = [random.choice((0.01, 1, 5)) for _ in kinds]
    text = "".join(kind() for kind in random.choices(kinds, weights, k=random.randrange(24)))
    return "".join(c for c in text if "\ud800" <= c < "\ue000" or is_known(c))


def corpus(files: list[Path], size: int, random: random.Random) -> list[str]:
    """Lines from the Python installation, of the vocabularies' words, and of random characters."""
    lines = list(installed(size // 3))
    for script, vocabulary in words(files).items():
        left, glue = size // 20, "" if script in WITHOUT_SPACES else " "
        while left > 0 and vocabulary:
            lines.append(sentence(vocabulary, glue, random))
            left -= len(lines[-1].encode())
    left = size // 10
    while left > 0:
        lines.append("".join(hostile(random) for _ in range(random.randrange(1, 6))))
        left -= len(lines[-1].encode("utf-8", "replace"))
    return lines


def chunks(lines: list[str], random: random.Random) -> Iterator[str]:
    at = 0
    while at < len(lines):
        count = random.randrange(2, 200)
        yield "\n".join(lines[at : at + count])
        at += count


def differences(pair: Pair, texts: Iterable[str], shown: int = 3) -> int:
    """Count the texts whose ids differ from the library's; print the first few."""
    found = 0
    for text in texts:
        # swiftchat reads a lone surrogate, which UTF-8 cannot encode, as U+FFFD.
        expected = pair.theirs(re.sub("[\ud800-\udfff]", "\ufffd", text))
        ids = pair.ours(text)
        if ids != expected:
            found += 1
            if found <= shown:
                pairs = enumerate(zip(ids, expected, strict=False))
                at = next((place for place, (mine, other) in pairs if mine != other), -1)
                print(
                    f"  at {at}: ours {ids[at : at + 8]}, theirs {expected[at : at + 8]}, "
                    f"in {text[:300]!r}",
                    flush=True,
                )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("vocabularies", type=Path)
    parser.add_argument("--only", default="", help="part of a file's name")
    parser.add_argument("--megabytes", type=float, default=6)
    parser.add_argument("--strings", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    generator = random.Random(options.seed)
    files = sorted(f for f in options.vocabularies.iterdir() if f.suffix in (".model", ".gguf"))
    lines = corpus(files, int(options.megabytes * 1e6), generator)
    long = list(chunks(lines, generator))
    strings = [hostile(generator) for _ in range(options.strings)]
    size = sum(len(line.encode("utf-8", "replace")) + 1 for line in lines)
    print(
        f"corpus: {size / 1e6:.1f} MB, {len(lines)} lines, {len(long)} chunks; "
        f"{len(strings)} strings"
    )
    for file in files:
        if options.only not in file.name:
            continue
        for pair in pairs(file):
            started = time.perf_counter()
            found = [differences(pair, texts) for texts in (lines, long, strings)]
            print(
                f"{pair.name}: {found[0]} lines, {found[1]} chunks, {found[2]} strings differ "
                f"({time.perf_counter() - started:.0f} s)",
                flush=True,
            )


if __name__ == "__main__":
    main()
