"""Compare ids of GGUF vocabularies with those of llama.cpp, by hand.

`python -m tests.llama_ids PROGRAM VOCABULARY.gguf …` encodes random texts, with control tokens and
without, by our tokenizer and by PROGRAM, which `ids.cpp` beside this file builds. `--pre NAME …`
compares byte-level vocabularies written again with these pre-tokenizers, `--pre all` with all that
we accept. The shortest texts that differ are printed. The exit code is 1 if any text differs.

docs/compatibility.md lists the differences that are known and stay.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gguf

from swiftchat.tokenizer import Tokenizer
from swiftchat.weights.formats.gguf import GgufFile
from swiftchat.weights.gguf.config import tokenizer_config_json
from swiftchat.weights.gguf.pretokenizers import PRE_TOKENIZERS
from swiftchat.weights.gguf.tokenizer import tokenizer_files

_PARTS = (
    *("the", " quick", "Brown", " fOx", "XML", "aAbB", "naïve", " Größe", "Việt", "нет", "ДА"),
    *("I'm", "we'LL", "'S", "they'Re", "don't", "'", "’s", "dog's", " 'tis", "O'D"),
    *("1", "234", " 56", "7890", "1234567", "3.14", "0x1F", "1,000"),
    *(" ", "  ", "    ", "\n", "\n\n", "\r\n", "\t", " \n ", "\n   \n"),
    *(
        "你好",
        "世界",
        "漢字",
        "かな",
        "カナ",
        "한국어",
        "ไทย",
        "हिन्दी",
        "العربية",
        "עברית",
        "。",
        "，",
    ),
    *("\U0001f600", "\U0001f44d\U0001f3fd", "\U0001f468\u200d\U0001f469", "\u2764\ufe0f"),
    *(
        "def f(x):",
        "return x ** 2",
        "//",
        "/*",
        "*/",
        "!=",
        "=>",
        "{}",
        "();",
        "_",
        "#",
        "$x",
        "\\n",
    ),
    *("!", "?!", "...", "…", "“", "”", "—", "-", "+", "<", ">", "~", "`", "^", "|", "@"),
    *("http://a.b/c?d=e", "e-mail@x.org", "<b>", "</b>", "<unk"),
)
# Left to themselves: characters on whose kind libraries of expressions do not agree.
_RARE = ("\u00a0", "\u3000", "\u200b", "\u00bd", "\u0663", "e\u0301", "\u01c5", "\u02b0", "\u2028")
_SHOWN = 4


def random_texts(count: int, controls: Sequence[str], numbers: random.Random) -> Iterator[str]:
    """Yield texts of known parts, of random characters, and of both."""
    parts = [*_PARTS, *numbers.sample(controls, min(len(controls), 20))]
    for number in range(count):
        kind = number % 4
        if kind == 0:
            yield "".join(numbers.choices(parts, k=numbers.randint(1, 12)))
        elif kind == 1:
            yield "".join(numbers.choices("aB 1\n'.,é中", k=numbers.randint(1, 24)))
        elif kind == 2:
            yield "".join(map(chr, _characters(numbers)))
        else:
            yield "".join(numbers.choices([*parts, *_RARE], k=numbers.randint(2, 8)))


def _characters(numbers: random.Random) -> Iterator[int]:
    for _ in range(numbers.randint(1, 16)):
        # A NUL byte separates texts, and surrogates have no UTF-8.
        low, high = numbers.choice(((32, 126), (161, 0x24F), (0x370, 0x9FFF), (0x1F300, 0x1FAFF)))
        yield numbers.randint(low, high)


def load(path: Path) -> Tokenizer:
    """Return the tokenizer of a GGUF file."""
    file = GgufFile.open(path)
    config = json.dumps(tokenizer_config_json(file)).encode()
    return Tokenizer.from_files({**tokenizer_files(file.metadata), "tokenizer_config.json": config})


def their_ids(program: str, path: Path, texts: Sequence[str], *options: str) -> list[Any] | None:
    """Return the ids of each text, None if llama.cpp does not load the file."""
    done = subprocess.run(
        [program, str(path), *options], input="\0".join(texts).encode(), capture_output=True
    )
    return None if done.returncode else list(map(json.loads, done.stdout.splitlines()))


def compare(program: str, path: Path, count: int, seed: int) -> int:
    """Print the differences of one vocabulary; return their number."""
    ours = load(path)
    texts = list(random_texts(count, sorted(ours.special_tokens), random.Random(seed)))
    different = []
    for option in ((), ("--content",)):
        theirs = their_ids(program, path, texts, *option)
        if theirs is None:
            print(f"{path.name}: llama.cpp does not load it")
            return 0
        for text, expected in zip(texts, theirs, strict=True):
            ids = ours.encode(text) if option else ours.encode_rendered(text, ())
            if ids != expected:
                different.append((text, option, ids, expected))
    print(f"{path.name}: {len(different)} of {2 * count} differ", flush=True)
    for text, option, ids, expected in sorted(different, key=lambda entry: len(entry[0]))[:_SHOWN]:
        pieces = [list(map(ours.decode, zip(found))) for found in (ids, expected)]
        print(f"  {text!r} {' '.join(option)}\n    ours   {pieces[0]}\n    theirs {pieces[1]}")
    return len(different)


def with_pre_tokenizer(source: Path, name: str, folder: Path) -> Path:
    """Write the byte-level vocabulary of a file again, with another pre-tokenizer."""
    metadata = GgufFile.open(source).metadata
    path = folder / f"{source.stem} as {name}.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(1)
    writer.add_context_length(512)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(name)
    writer.add_token_list(metadata["tokenizer.ggml.tokens"])
    writer.add_token_types(metadata["tokenizer.ggml.token_type"])
    writer.add_token_merges(metadata["tokenizer.ggml.merges"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.llama_ids", description=__doc__)
    parser.add_argument("program")
    parser.add_argument("vocabularies", nargs="+", type=Path, metavar="VOCABULARY")
    parser.add_argument("--pre", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    names = list(PRE_TOKENIZERS) if arguments.pre == ["all"] else arguments.pre
    different = 0
    with tempfile.TemporaryDirectory() as folder:
        for vocabulary in arguments.vocabularies:
            paths = (with_pre_tokenizer(vocabulary, name, Path(folder)) for name in names)
            for path in paths if names else [vocabulary]:
                different += compare(arguments.program, path, arguments.texts, arguments.seed)
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
