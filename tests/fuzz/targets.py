"""All formats, by name."""

from tests.fuzz.formats import (
    adapters,
    configs,
    conversations,
    frames,
    gguf_files,
    gguf_tokenizers,
    heads,
    kv_files,
    quantized,
    safetensors,
    sentencepiece_files,
    settings,
    tekken,
    templates,
    tokenizer_json,
    torch_files,
)
from tests.fuzz.target import Target

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        safetensors.SAFETENSORS,
        safetensors.INDEX,
        torch_files.ZIP,
        torch_files.LEGACY,
        gguf_files.GGUF,
        gguf_tokenizers.GGUF_TOKENIZER,
        tokenizer_json.TOKENIZER_JSON,
        tekken.TEKKEN,
        sentencepiece_files.SENTENCEPIECE,
        configs.CONFIG,
        configs.GENERATION,
        *adapters.ADAPTERS,
        *heads.HEADS,
        *quantized.QUANTIZED,
        templates.TEMPLATE,
        conversations.SESSIONS,
        conversations.EXPORTS,
        *settings.SETTINGS,
        *frames.FRAMES,
        kv_files.KV_FILES,
    )
}
