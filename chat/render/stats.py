"""Lines about the speed and the memory of an answer."""

from swiftchat.chat.model.answer import Answer
from swiftchat.engine.api.protocol import EngineInfo


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def speeds(answer: Answer) -> dict[str, float | None]:
    computed = answer.num_prompt_tokens - (answer.result.cached_tokens if answer.result else 0)
    prompt_tps = computed / answer.ttft_s if answer.ttft_s else None
    return {"prompt_tps": rounded(prompt_tps), "completion_tps": rounded(answer.tokens_per_s)}


def stats_line(answer: Answer, load_s: float) -> str:
    """What an answer cost, for people."""
    rates = speeds(answer)
    cached = answer.result.cached_tokens if answer.result else 0

    def per_s(value: float | None) -> str:
        return "–" if value is None else f"{value:.1f} tok/s"

    return (
        f"load {load_s:.2f} s · prompt {answer.num_prompt_tokens} tokens ({cached} cached) · "
        f"first token {answer.ttft_s or 0:.2f} s, {per_s(rates['prompt_tps'])} · "
        f"answer {answer.num_tokens} tokens, {per_s(rates['completion_tps'])} · "
        f"{answer.finish_reason}"
    )


def memory_line(info: EngineInfo) -> str:
    """What the engine took, and what for, for people."""
    count, weights, cache, each = info.tp * info.pp, info.weights_bytes, info.cache_bytes, ""
    devices = f"{count} × {info.device}" if count > 1 else info.device
    if info.pp > 1:  # stages differ
        weights, cache, each = weights * info.tp, cache * info.tp, " in all"
    elif info.tp > 1:
        each = " each"
    kept = "" if info.kv_dtype in ("auto", info.dtype) else f" in {info.kv_dtype}"
    return (
        f"{devices}, {info.dtype} · weights {weights / 1e9:.2f} GB{each} · "
        f"cache for {info.cache_tokens} tokens{kept} {cache / 1e9:.2f} GB{each} · "
        f"context {info.ctx_size_tokens}"
    )
