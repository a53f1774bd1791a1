"""Speed of the tokenizer beside the reference libraries, one thread, one run.

    python benchmarks/tokenizer_speed.py MODEL... [--megabytes 1]

MODEL is a directory or a vocabulary file for `Tokenizer.load`; `tokenizers` or `sentencepiece`
reads the same file if it can. Every text is encoded by a new tokenizer (first), then again by the
same one (repeated); medians of five. English and code are comments and sources of Python's
standard library. The Chinese text samples 3,000 characters by Zipf's law in runs of up to 20, so
words hardly repeat, which is harder than real text.
"""

import argparse
import os
import random
import re
import statistics
import sys
import sysconfig
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from swiftchat.tokenizer import Tokenizer

os.environ["RAYON_NUM_THREADS"] = "1"
Encode = Callable[[str], list[int]]
_ROUNDS = 5


def main() -> None:
    """Print load times and a table of megabytes of UTF-8 a second."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("models", nargs="+", type=Path)
    arguments.add_argument("--megabytes", type=float, default=1.0)
    options = arguments.parse_args()
    texts = _texts(int(options.megabytes * 1e6))
    for path in options.models:
        print(f"\n{path}")
        makers: dict[str, Callable[[], Encode]] = {"swiftchat": lambda p=path: _swiftchat(p)}
        makers |= _references(path)
        for name, make in makers.items():
            cells = [f"{name:14}", f"load {_median(make):6.3f} s"]
            for kind, text in texts.items():
                first, again = _speeds(make, text)
                cells.append(f"{kind} {first:6.2f} {again:6.2f}")
            print("  ".join(cells), flush=True)
        _compare(makers, texts)


def _swiftchat(path: Path) -> Encode:
    return Tokenizer.load(path).encode


def _references(path: Path) -> dict[str, Callable[[], Encode]]:
    file = path if path.is_file() else path / "tokenizer.json"
    if file.suffix == ".json" and file.is_file():
        return {"tokenizers": lambda: _tokenizers(file)}
    if path.suffix == ".model":
        return {"sentencepiece": lambda: _sentencepiece(path)}
    return {}


def _tokenizers(file: Path) -> Encode:
    import tokenizers

    library = tokenizers.Tokenizer.from_file(str(file))
    library.encode_special_tokens = True
    return lambda text: library.encode(text, add_special_tokens=False).ids


def _sentencepiece(file: Path) -> Encode:
    import sentencepiece

    library = sentencepiece.SentencePieceProcessor(model_file=str(file))
    return lambda text: library.encode(text)


def _median(make: Callable[[], Encode]) -> float:
    return statistics.median(_seconds(make) for _ in range(_ROUNDS))


def _speeds(make: Callable[[], Encode], text: str) -> tuple[float, float]:
    """Megabytes a second, first and repeated."""
    megabytes = len(text.encode()) / 1e6
    first, again = [], []
    for _ in range(_ROUNDS):
        encode = make()
        first.append(_seconds(partial(encode, text)))
        again.append(_seconds(partial(encode, text)))
    return megabytes / statistics.median(first), megabytes / statistics.median(again)


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _compare(makers: dict[str, Callable[[], Encode]], texts: dict[str, str]) -> None:
    encoders = [make() for make in makers.values()]
    for kind, text in texts.items():
        ids = [encode(text) for encode in encoders]
        if any(other != ids[0] for other in ids):
            sys.exit(f"the ids of {kind} differ")


def _texts(num_bytes: int) -> dict[str, str]:
    sources = Path(sysconfig.get_path("stdlib")).glob("*/*.py")
    code = "\n".join(file.read_text(errors="replace") for file in sorted(sources))
    comments = re.findall(r"^ *# (.*\n)|\"\"\"([^\"]+)\"\"\"", code, re.MULTILINE)
    prose = " ".join(line or text for line, text in comments)
    return {
        "English": prose[:num_bytes],
        "code": code[:num_bytes],
        "Chinese": _chinese(num_bytes // 3),
    }


def _chinese(num_characters: int) -> str:
    chance = random.Random(0)
    characters = [chr(0x4E00 + 7 * n) for n in range(2985)]
    chance.shuffle(characters)
    weights = [1 / rank for rank in range(1, len(characters) + 1)]
    text = chance.choices(characters, weights, k=num_characters)
    at = 0
    while (at := at + chance.randint(3, 20)) < len(text):
        text[at] = chance.choice("，。、\n")
    return "".join(text)


if __name__ == "__main__":
    main()
