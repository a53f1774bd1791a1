"""The instruction sets of the processor that variants of the kernels need."""

from enum import IntFlag


class Feature(IntFlag):
    """The bits of `cpu_features`, as kernels/cpu_features.h documents them."""

    AVX2 = 1
    AVX512 = 2
    AVX512VNNI = 4
    AVX512BF16 = 8
    AMX = 16
    DOTPROD = 32
    I8MM = 64
    AVXVNNI = 128

    @property
    def words(self) -> str:
        return ", ".join(_WORDS[feature] for feature in self) or "none"


_WORDS = {
    Feature.AVX2: "AVX2",
    Feature.AVX512: "AVX-512",
    Feature.AVX512VNNI: "AVX512-VNNI",
    Feature.AVX512BF16: "AVX512-BF16",
    Feature.AMX: "AMX",
    Feature.DOTPROD: "dot products",
    Feature.I8MM: "int8 matrix products",
    Feature.AVXVNNI: "AVX-VNNI",
}
_AVX512 = Feature.AVX2 | Feature.AVX512 | Feature.AVX512VNNI

# What each variant of `build.VARIANTS` needs.
REQUIRED = {
    "plain": Feature(0),
    "avx2": Feature.AVX2,
    "avxvnni": Feature.AVX2 | Feature.AVXVNNI,
    "avx512": _AVX512,
    "avx512bf16": _AVX512 | Feature.AVX512BF16,
    "neon": Feature.DOTPROD,
    "i8mm": Feature.DOTPROD | Feature.I8MM,
}

# What each instruction set makes faster, for `swiftchat doctor`.
_SPEEDS = {
    Feature.AVX2: "all models; the native kernels need it",
    Feature.AVXVNNI: "quantized weights, without AVX-512",
    Feature.AVX512: "wider vectors, for all models",
    Feature.AVX512VNNI: "quantized weights",
    Feature.AVX512BF16: "long prompts with bfloat16 weights",
}
_SPEEDS_ON_ARM = {
    Feature.DOTPROD: "quantized weights; the native kernels need it",
    Feature.I8MM: "long prompts with quantized weights",
}


def instruction_sets(features: Feature) -> list[dict[str, str | bool]]:
    """Return the instruction sets that kernels can use: name, what they speed up, if found."""
    is_arm = bool(features & (Feature.DOTPROD | Feature.I8MM))
    speeds = _SPEEDS_ON_ARM if is_arm else _SPEEDS
    return [
        {"name": _WORDS[one], "speeds_up": what, "found": bool(one & features)}
        for one, what in speeds.items()
    ]
