"""The pre-tokenizers of GGUF vocabularies as entries of `tokenizer.json`.

Source: the patterns in llama.cpp's `llama-vocab.cpp`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_PATTERN = _LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")
_QWEN35_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT4O_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SEED_CODER_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_EXAONE_MOE_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_YOUTU_PATTERNS = (
    "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
    _GPT4O_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}"),
)
_GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CJK = "[一-龥ࠀ-一가-퟿]+"
_DEEPSEEK_LLM_PATTERNS = (
    r"[\r\n]",
    # Cased letters. Those that look like another letter are written as escapes.
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚ"
    "Ḁ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼ"
    "ℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳ"
    "Ꙁ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    _CJK,
    r"\p{N}",
)
_DEEPSEEK_CODER_PATTERNS = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")
_DEEPSEEK3_PATTERNS = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_GROUPED_DIGITS = r"\d{1,3}(?=(?:\d{3})*(?!\d))"  # groups of three, counted from the end
_SPARK_PATTERNS = (
    *_DEEPSEEK3_PATTERNS[:2],
    _DEEPSEEK3_PATTERNS[2].replace(r"[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+", r"[\p{P}\p{S}]+|[\r\n]"),
    r"\p{N}",
)
_MINICPM5_PATTERNS = (r"\p{N}{1,3}", _LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}+"))
_LAGUNA_PATTERNS = (r"\n+", _QWEN2_PATTERN)
_UFAKZEKA_PATTERN = _QWEN2_PATTERN.partition("|")[2].partition("d)|")[2]
_AFMOE_PATTERNS = (
    _GROUPED_DIGITS,
    "[一-鿿㐀-䶿豈-\ufaff぀-ゟ゠-ヿ･-ﾟ⼀-\u2fdfเ-\u0e7f\u0e80-\u0eff"
    "ក-\u17ffက-႟ꩠ-ꩿꧠ-\ua9ff가-\ud7afᄀ-ᇿ]+",
    _DEEPSEEK3_PATTERNS[2],
)
_BAILING_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_JAIS2_PATTERN = _LLAMA3_PATTERN.removesuffix(r"|\s+(?!\S)|\s+") + "".join(
    rf"|\s{{{count}}}(?!\S)" for count in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2")
)
# As GPT-4o's, but letters of Chinese characters are pieces of their own.
_UPPER, _LOWER = (
    rf"(?:(?!\p{{Han}})[\p{{{case}}}\p{{Lm}}\p{{Lo}}\p{{M}}])" for case in (r"Lu}\p{Lt", "Ll")
)
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_KIMI_PATTERN = (
    rf"\p{{Han}}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDINGS}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDINGS}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BLOOM_PATTERN = r" ?[^(\s|.,!?…。，、।۔،)]+"
_FALCON_PUNCTUATION = r"[\p{P}$+<=>^~|`]+"


def byte_level(*, use_regex: bool) -> dict[str, Any]:
    """Return the byte-level pre-tokenizer, post-processor or decoder of `tokenizer.json`."""
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def _split(*patterns: str) -> dict[str, Any]:
    """Return a pre-tokenizer that splits by each pattern in turn, then maps to bytes."""
    return _sequence(*map(_isolated, patterns), byte_level(use_regex=False))


def _isolated(pattern: str, behavior: str = "Isolated") -> dict[str, Any]:
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": behavior,
        "invert": False,
    }


def _sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


_GPT2 = byte_level(use_regex=True)
_GPT2_AND_DIGITS = _sequence({"type": "Digits", "individual_digits": True}, _GPT2)
_FALCON = _sequence(
    _isolated(_FALCON_PUNCTUATION, "Contiguous"),
    _isolated(_GPT2_PATTERN),
    _isolated("[0-9][0-9][0-9]"),
    byte_level(use_regex=False),
)

LLAMA3 = (
    *("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2", "midm-2.0"),
    "jina-v5-nano",
)
# By `tokenizer.ggml.pre`. Files older than that key use GPT-2's.
PRE_TOKENIZERS: Mapping[str, dict[str, Any]] = MappingProxyType(
    {
        **dict.fromkeys(("default", "gpt-2", "phi-2", "mpt", "olmo", "jais"), _GPT2),
        **dict.fromkeys(("a.x-4.0", "modern-bert", "jina-v2-code", "roberta-bpe"), _GPT2),
        **dict.fromkeys(("exaone4", "gigachat", "trillion", "granite-docling", "mellum"), _GPT2),
        **dict.fromkeys(
            ("smollm", "starcoder", "refact", "command-r", "codeshell"), _GPT2_AND_DIGITS
        ),
        **dict.fromkeys(("exaone", "minerva-7b", "mellum2"), _GPT2_AND_DIGITS),
        **dict.fromkeys(
            (*LLAMA3, "dbrx", "smaug-bpe", "chatglm-bpe", "glm4", "glm5"), _split(_LLAMA3_PATTERN)
        ),
        "minicpm5": _split(*_MINICPM5_PATTERNS),
        **dict.fromkeys(
            ("qwen2", "deepseek-r1-qwen", "stablelm2", "kormo", "f2llmv2"), _split(_QWEN2_PATTERN)
        ),
        **dict.fromkeys(("hunyuan", "solar-open", "megrez", "grok-2"), _split(_QWEN2_PATTERN)),
        "laguna": _split(*_LAGUNA_PATTERNS),
        "ufakzeka": _split(_UFAKZEKA_PATTERN),
        "qwen35": _split(_QWEN35_PATTERN),
        "kimi-k2": _split(_KIMI_PATTERN),
        "afmoe": _split(*_AFMOE_PATTERNS),
        **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), _split(_BAILING_PATTERN)),
        "jais-2": _split(_JAIS2_PATTERN + r"|\s"),
        **dict.fromkeys(("tiny_aya", "cohere2moe"), _split(_GROUPED_DIGITS, _GPT4O_PATTERN)),
        "viking": _split(_BLOOM_PATTERN, r"\p{N}"),
        "youtu": _split(*_YOUTU_PATTERNS),
        "seed-coder": _split(_SEED_CODER_PATTERN),
        "exaone-moe": _split(_EXAONE_MOE_PATTERN),
        **dict.fromkeys(
            ("gpt-4o", "llama4", "minimax-m2", "kanana2", "talkie"), _split(_GPT4O_PATTERN)
        ),
        "tekken": _split(_TEKKEN_PATTERN),
        "deepseek-llm": _split(*_DEEPSEEK_LLM_PATTERNS),
        "deepseek-coder": _split(*_DEEPSEEK_CODER_PATTERNS),
        **dict.fromkeys(
            ("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), _split(*_DEEPSEEK3_PATTERNS)
        ),
        "spark2_5": _split(*_SPARK_PATTERNS),
        "falcon": _FALCON,
        **dict.fromkeys(("bloom", "gpt3-finnish", "poro-chat"), _split(_BLOOM_PATTERN)),
    }
)
