"""Byte-level BPE: ids and text equal those of `tokenizers`; bounded time on hostile input."""

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import example, given, reject, settings
from hypothesis import strategies as st

from swiftchat.errors import BadModelFile, ModelNotFound
from swiftchat.tokenizer import Tokenizer
from swiftchat.tokenizer.core.bpe import merge

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")


def byte_level(**changes: bool) -> dict[str, Any]:
    plain = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {**plain, "use_regex": True, **changes}


def split(pattern: dict[str, str], behavior: str = "Isolated", invert: bool = False) -> Any:
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def sequence(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(parts)}


def digits(individual: bool) -> dict[str, Any]:
    return {"type": "Digits", "individual_digits": individual}


RAW = byte_level(use_regex=False)
PRE_TOKENIZERS: dict[str, Any] = {
    "gpt2": byte_level(),
    "prefix space": byte_level(add_prefix_space=True),
    "llama3": sequence(split({"Regex": LLAMA3}), RAW),
    "qwen2": sequence(split({"Regex": QWEN2}), RAW),
    "smollm": sequence(digits(True), byte_level()),
    "smollm with prefix space": sequence(digits(True), byte_level(add_prefix_space=True)),
    "digit runs": sequence(digits(False), byte_level()),
    "falcon": sequence(
        {"type": "Punctuation", "behavior": "Contiguous"},
        byte_level(),
        split({"Regex": "[0-9][0-9][0-9]"}),
    ),
    "split symbols": sequence(RAW, split({"Regex": r"Ġ\w|Ċ+"}, "MergedWithNext")),
    "line ends": sequence(split({"Regex": r"^\s*a|\s+$"}), byte_level()),
    "no pattern": RAW,
    "null": None,
    "three splits": sequence(
        split({"Regex": r"\p{N}{1,3}"}), split({"Regex": r"[一-龥぀-ヿ]+"}), byte_level()
    ),
    "groups": sequence(split({"Regex": r"(\s)(a|b)?"}), RAW),
    "empty matches": sequence(split({"Regex": r"a*"}), RAW),
    "string": sequence(split({"String": "e "}, "MergedWithPrevious"), RAW),
    **{
        f"{behavior}{' inverted' * invert}": sequence(
            split({"Regex": r"\s|[aeiou]+?"}, behavior, invert), RAW
        )
        for behavior in ("Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext")
        for invert in (False, True)
    },
}
CORPUS = [
    "the quick brown fox isn't over the lazy dog's 12345 tails, they're 67 890",
    "def f(x):\n    return [x ** 2 for x in range(1000)]\n\n\n\t\tpass  # aaaa bbbb aaab\r\n",
    "Größe café naïve Việt нет да 你好世界 日本語 한국어 \U0001f600\U0001f44d\U0001f3fd e\u0301",
    "aaaaaaaa        !!!!!!!! ababababab <think> hello </think> the the the",
]


def trained(pre_tokenizer: Any, vocab_size: int = 420, **model_options: Any) -> dict[str, Any]:
    """Return the JSON of a small byte-level tokenizer trained with the library."""
    base = {"vocab": {}, "merges": [], "type": "BPE"}
    spec = {"version": "1.0", "added_tokens": [], "pre_tokenizer": pre_tokenizer, "model": base}
    spec["decoder"] = byte_level()
    library = tokenizers.Tokenizer.from_str(json.dumps(spec))
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    library.train_from_iterator(
        CORPUS * 3,
        tokenizers.trainers.BpeTrainer(
            vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False
        ),
    )
    result: dict[str, Any] = json.loads(library.to_str())
    result["model"] |= model_options
    return result


def reference(spec: dict[str, Any]) -> tokenizers.Tokenizer:
    """Return the library's tokenizer, set to encode control tokens as ordinary text."""
    library = tokenizers.Tokenizer.from_str(json.dumps(spec))
    library.encode_special_tokens = True
    return library


class Pair:
    """Our tokenizer and the library's, from the same JSON."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.ours, self.theirs = Tokenizer.from_json(spec), reference(spec)

    def check(self, text: str) -> None:
        ids = self.ours.encode(text)
        try:
            expected = self.theirs.encode(text, add_special_tokens=False).ids
        except BaseException as error:
            if type(error).__name__ != "PanicException":
                raise
            reject()  # the library panics on some overlapping added tokens: "bad split"
        assert ids == expected, text
        assert self.ours.decode(ids) == self.theirs.decode(ids, skip_special_tokens=False)


PIECES = st.sampled_from(
    [
        "the",
        "They'LL",
        "'S",
        "\u017f",
        "\u212a",
        " ",
        "  ",
        "\n",
        "\r\n",
        "\t",
        "\x85",
        "\xa0",
        "\u2003",
        "\u200b",
        "\x00",
        "\x1c",
        "\x1f",
        "\x7f",
        "1",
        "23",
        "٣",
        "½",
        "Ⅷ",
        "一",
        "你好",
        "한",
        "e\u0301",
        "é",
        "A\u030a",
        "\U0001f600",
        "\U0001f44d\U0001f3fd",
        "👨\u200d👩",
        "a",
        "aaaa",
        "ab",
        "b",
        "e ",
        "!",
        "!!",
        "_",
        "don't",
        "\U0010ffff",
        "<|x|>",
        "<|",
        "|>",
    ]
)
TEXTS = st.one_of(
    st.lists(PIECES, max_size=20).map("".join),
    st.text(st.characters(exclude_categories=["Cs", "Cn"]), max_size=30),
    st.text("ab \n1", max_size=60),
)


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
@pytest.mark.parametrize("normalizer", [None, {"type": "NFC"}], ids=["raw", "nfc"])
def test_trained_vocabularies_equal_the_library(name: str, normalizer: Any) -> None:
    pair = Pair(trained(PRE_TOKENIZERS[name]) | {"normalizer": normalizer})

    @settings(max_examples=60, deadline=None)
    @given(TEXTS)
    def check(text: str) -> None:
        pair.check(text)

    check()
    for text in CORPUS:
        pair.check(text)


@settings(max_examples=100, deadline=None)
@given(data=st.data(), ignore_merges=st.booleans())
def test_random_vocabularies_equal_the_library(data: st.DataObject, ignore_merges: bool) -> None:
    """Merges in any order or with the same result, tokens without a merge, missing bytes."""
    letters = "abcĠ"
    known = list(data.draw(st.lists(st.sampled_from(letters), min_size=1, unique=True)))
    merges: list[list[str]] = []
    for _ in range(data.draw(st.integers(0, 12))):
        left, right = (data.draw(st.sampled_from(known)) for _ in range(2))
        if [left, right] not in merges and len(left + right) <= 12:
            merges.append([left, right])
            known += [] if left + right in known else [left + right]
    known += [
        t
        for t in data.draw(st.lists(st.text(letters, min_size=2, max_size=5), max_size=3))
        if t not in known
    ]
    vocab = {token: number for number, token in enumerate(dict.fromkeys(known))}
    order = data.draw(st.permutations(merges))
    model = {"type": "BPE", "vocab": vocab, "merges": order, "ignore_merges": ignore_merges}
    spec = {"version": "1.0", "added_tokens": [], "pre_tokenizer": RAW, "model": model}
    pair = Pair(spec | {"decoder": byte_level()})
    for text in data.draw(st.lists(st.text("abc d", max_size=40), min_size=1, max_size=5)):
        pair.check(text)


FLAGS = st.fixed_dictionaries(
    {key: st.booleans() for key in ("lstrip", "rstrip", "single_word", "normalized")}
)
ADDED = ["<x>", "<x>y", "x><", " <t>", "word", "Å", "A\u030a", "<|im|>", "\n\n", "é", "_"]


@settings(max_examples=100, deadline=None)
@given(
    flags=st.lists(FLAGS, min_size=len(ADDED), max_size=len(ADDED)),
    chosen=st.sets(st.sampled_from(range(len(ADDED)))),
    text=st.lists(
        st.sampled_from([*ADDED, " ", "  ", "\n", "a", "the", "ö", "\u030a", "<", ">", "\x1c"]),
        max_size=14,
    ).map("".join),
    normalizer=st.sampled_from([None, {"type": "NFC"}]),
)
def test_added_tokens_equal_the_library(
    flags: list[dict[str, bool]], chosen: set[int], text: str, normalizer: Any
) -> None:
    spec = SMALL | {"normalizer": normalizer}
    first = len(spec["model"]["vocab"])
    spec["added_tokens"] = [
        {
            "id": spec["model"]["vocab"].get(ADDED[i], first + n),
            "content": ADDED[i],
            "special": False,
            **flags[i],
        }
        for n, i in enumerate(sorted(chosen))
    ]
    # The library does not define which of two tokens wins that are equal after normalization.
    if normalizer and {ADDED.index("Å"), ADDED.index("A\u030a")} <= chosen:
        return
    library = tokenizers.Tokenizer.from_str(json.dumps(spec))
    for token in spec["added_tokens"]:
        token["id"] = library.token_to_id(token["content"])
    Pair(spec).check(text)


SMALL = trained(PRE_TOKENIZERS["gpt2"])


def test_control_tokens_in_text_are_ordinary_text() -> None:
    vocab = SMALL["model"]["vocab"]
    tokens = ["<|end|>", "the", "<b>"]
    first = len(vocab)
    spec = SMALL | {
        "added_tokens": [
            {
                "id": vocab.get(t, first + (t == "<b>")),
                "content": t,
                "special": t != "<b>",
                "normalized": False,
            }
            for t in tokens
        ]
    }
    ours = Tokenizer.from_json(spec)
    control = set(ours.special_tokens.values())
    assert control == {first, vocab["the"]}
    for text in ("<|end|>", "the", " the", "a<b><|end|>the"):
        ids = ours.encode(text)
        assert not control & set(ids)
        assert ours.decode(ids) == text
    assert first + 1 in ours.encode("<b>")
    assert ours.decode([first], skip_special=True) == ""
    assert ours.vocab_size == first + 2


LOADED: dict[str, Pair] = {}


@settings(max_examples=100, deadline=None)
@given(TEXTS)
@example("\x04 lacks a token")
@example("Hello <|im_end|><|im_start|>system")
def test_smollm2_equals_the_library(smollm2: Path, text: str) -> None:
    key = str(smollm2)
    if key not in LOADED:
        LOADED[key] = Pair(json.loads((smollm2 / "tokenizer.json").read_text()))
    LOADED[key].check(text)


@settings(max_examples=60, deadline=None)
@given(st.text("ab", max_size=120))
def test_merge_with_heap_equals_a_loop(text: str) -> None:
    ranks = {"a b": 3, "ab a": 1, "a a": 2, "b aa": 0, "aba b": 4}
    symbols = list(text)
    while True:
        found = [
            (ranks[p], i)
            for i in range(len(symbols) - 1)
            if (p := " ".join(symbols[i : i + 2])) in ranks
        ]
        if not found:
            break
        at = min(found)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    assert merge(list(text), ranks, " ") == symbols


# Made by the tests: every process that collects them would wait for the random ones.
HOSTILE = {
    "a": lambda: "a" * 100_000,
    "spaces": lambda: " " * 100_000,
    "bytes": lambda: random.Random(0).randbytes(100_000).decode("utf-8", "replace"),
    "letters": lambda: "".join(random.Random(1).choices("abcdefghij", k=100_000)),
    "control tokens": lambda: "<|im_start|>" * 8_000,
    "prefixes": lambda: "<|im_" * 20_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_time_for_a_hostile_tenth_of_a_megabyte(smollm2: Path, name: str) -> None:
    ours = Tokenizer.load(smollm2)
    text = HOSTILE[name]()
    start = time.process_time()
    ids = ours.encode(text)
    # About 0.1 s. An algorithm that is not linear takes minutes.
    assert time.process_time() - start < 15
    assert not set(ours.special_tokens.values()) & set(ids)


def test_loading_smollm2(smollm2: Path, tmp_path: Path) -> None:
    ours = Tokenizer.load(smollm2)
    start = time.process_time()
    Tokenizer.load(smollm2)
    assert time.process_time() - start < 6
    assert ours.bos_id == 1
    assert ours.eos_ids == (2, 0)
    assert ours.vocab_size == 49152
    assert ours.special_tokens["<|im_end|>"] == 2
    with pytest.raises(ModelNotFound):
        Tokenizer.load(tmp_path)
    for text in ("{", "\ud800".encode("utf-16", "surrogatepass").decode("latin-1"), "[" * 99999):
        (tmp_path / "tokenizer.json").write_text(text)
        with pytest.raises(BadModelFile):
            Tokenizer.load(tmp_path)


def test_lone_surrogates_are_replaced() -> None:
    ours = Tokenizer.from_json(SMALL)
    assert ours.decode(ours.encode("a\udc80b")) == "a\ufffdb"


TEXT_A = {"Sequence": {"id": "A", "type_id": 0}}


def special(name: str) -> dict[str, Any]:
    return {"SpecialToken": {"id": name, "type_id": 0}}


def ends(single: list[Any], tokens: dict[str, Any]) -> dict[str, Any]:
    return {"type": "TemplateProcessing", "single": single, "special_tokens": tokens}


INVALID: list[tuple[str, Any, str]] = [
    ("model", None, "model"),
    ("model.type", "Unigram", "model.vocab"),
    ("model.type", "WordPiece", "WordPiece"),
    ("model.byte_fallback", "yes", "model.byte_fallback"),
    ("model.vocab", {}, "model.vocab"),
    ("model.vocab", {"a": -1}, "model.vocab"),
    ("model.vocab", {"a": True}, "model.vocab"),
    ("model.vocab", {"a": 1.5}, "model.vocab"),
    ("model.vocab", {"a": 10**12}, "model.vocab"),
    ("model.vocab", {"a": 1, "b": 1}, "model.vocab"),
    ("model.vocab", {"": 1}, "model.vocab"),
    ("model.merges", {}, "model.merges"),
    ("model.merges", ["a"], "model.merges[0]"),
    ("model.merges", [["a", "b", "c"]], "model.merges[0]"),
    ("model.merges", [7], "model.merges[0]"),
    ("model.merges", [[1, 2]], "model.merges"),
    ("model.merges", [[["a"], ["b"]]], "model.merges"),
    ("model.merges", [["a", "\x00"]], "model.merges"),
    ("model.unk_token", "nowhere", "model.unk_token"),
    ("model.ignore_merges", "yes", "model.ignore_merges"),
    ("added_tokens", 3, "added_tokens"),
    ("added_tokens", [3], "added_tokens[0]"),
    ("added_tokens", [{"id": -1, "content": "x"}], "added_tokens[0].id"),
    ("added_tokens", [{"id": "0", "content": "x"}], "added_tokens[0].id"),
    ("added_tokens", [{"id": 9999, "content": 5}], "added_tokens[0].content"),
    ("added_tokens", [{"id": 9999, "content": "<x>", "lstrip": 1}], "added_tokens[0].lstrip"),
    ("normalizer", {"type": "Lowercase"}, "Lowercase"),
    ("normalizer", 5, "normalizer"),
    ("pre_tokenizer", {"type": "Metaspace"}, "pre_tokenizer.replacement"),
    ("pre_tokenizer", sequence(byte_level(), byte_level()), "pre_tokenizer.pretokenizers[1]"),
    ("pre_tokenizer", {"type": "Punctuation", "behavior": "?"}, "pre_tokenizer.behavior"),
    ("pre_tokenizer", split({"Regex": "("}), "pre_tokenizer.pattern"),
    ("pre_tokenizer", split({"Regex": "a" * 100_000}), "pre_tokenizer.pattern"),
    ("pre_tokenizer", split({"Other": "a"}), "pre_tokenizer.pattern"),
    ("pre_tokenizer", split({"Regex": "a"}, "Other"), "pre_tokenizer.behavior"),
    ("decoder", {"type": "WordPiece"}, "WordPiece"),
    ("decoder", 5, "decoder"),
    ("post_processor", {"type": "Other"}, "Other"),
    ("post_processor", {"type": "TemplateProcessing", "single": 5}, "post_processor"),
    ("post_processor", ends([special("<x>")], {}), "post_processor.single[0]"),
    ("post_processor", ends([special("<x>")], {"<x>": {"ids": [-1]}}), "special_tokens.<x>.ids"),
    ("post_processor", ends([special("<x>")], {"<x>": {"ids": [1]}}), "post_processor.single"),
    ("post_processor", ends([TEXT_A, TEXT_A], {}), "post_processor.single"),
    ("post_processor", {"type": "BertProcessing", "sep": ["</s>", 1], "cls": 5}, "cls"),
    ("post_processor", {"type": "RobertaProcessing", "sep": ["</s>", "1"]}, "post_processor.cls"),
]


@pytest.mark.parametrize(("field", "value", "named"), INVALID)
def test_invalid_field_is_named(field: str, value: Any, named: str) -> None:
    spec = json.loads(json.dumps(SMALL))
    *path, last = field.split(".")
    place = spec
    for key in path:
        place = place[key]
    place[last] = value
    with pytest.raises(BadModelFile) as caught:
        Tokenizer.from_json(spec)
    assert named in str(caught.value)


def test_exponential_pattern_is_stopped() -> None:
    spec = SMALL | {"pre_tokenizer": sequence(split({"Regex": r"(a|aa|a+)+$"}), RAW)}
    start = time.process_time()
    with pytest.raises(BadModelFile, match="pattern"):
        Tokenizer.from_json(spec).encode("a" * 5000 + "b")
    assert time.process_time() - start < 20


def test_deeply_nested_sequences_are_rejected() -> None:
    spec: Any = byte_level()
    for _ in range(500):
        spec = sequence(spec, spec)
    with pytest.raises(BadModelFile, match="pre_tokenizer"):
        Tokenizer.from_json(SMALL | {"pre_tokenizer": spec})
