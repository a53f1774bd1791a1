"""The names of the types of GGUF tensors, by number."""

from collections.abc import Mapping

_TYPE_NAMES: Mapping[int, str] = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    30: "BF16",
    # Q4_0 in the order of a processor's instructions, which llama.cpp no longer writes.
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    34: "TQ1_0",
    35: "TQ2_0",
    36: "I2_S",  # of bitnet.cpp
    37: "I8_S",
    38: "TL1",
    39: "MXFP4",
    40: "NVFP4",
    41: "Q1_0",
    42: "Q2_0",  # groups of 64 values or of 128, which the number does not tell; of bitnet.cpp TL2
    # Of ik_llama.cpp.
    133: "Q6_0",
    134: "IQ1_BN",
    135: "IQ2_BN",
    137: "IQ2_K",
    138: "IQ3_K",
    139: "IQ4_K",
    140: "IQ5_K",
    141: "IQ6_K",
    144: "IQ4_KS",
    145: "IQ2_KS",
    146: "IQ4_KSS",
    152: "IQ5_KS",
    153: "IQ2_KT",
    154: "IQ3_KT",
    155: "IQ4_KT",
    156: "IQ3_KS",
    157: "IQ2_KL",
    158: "IQ1_KT",
    # Rows of these are interleaved; the number is 200 more than that of the type.
    **{
        200 + number: f"{name}_{rows}"
        for number, name, rows in (
            (2, "Q4_0", "R8"),
            (6, "Q5_0", "R4"),
            (8, "Q8_0", "R8"),
            (10, "Q2_K", "R4"),
            (11, "Q3_K", "R4"),
            (12, "Q4_K", "R4"),
            (13, "Q5_K", "R4"),
            (14, "Q6_K", "R4"),
            (16, "IQ2_XXS", "R4"),
            (17, "IQ2_XS", "R4"),
            (18, "IQ3_XXS", "R4"),
            (19, "IQ1_S", "R4"),
            (20, "IQ4_NL", "R4"),
            (21, "IQ3_S", "R4"),
            (22, "IQ2_S", "R4"),
            (23, "IQ4_XS", "R8"),
            (29, "IQ1_M", "R4"),
            (30, "BF16", "R16"),
        )
    },
    335: "IQ2_BN_R4",
    337: "IQ2_K_R4",
    338: "IQ3_K_R4",
    339: "IQ4_K_R4",
    340: "IQ5_K_R4",
    344: "IQ4_KS_R4",
    352: "IQ5_KS_R4",
}


def type_name(number: int) -> str:
    """Return the name of a type of tensors, `number N` for an unknown one."""
    return _TYPE_NAMES.get(number, f"number {number}")
