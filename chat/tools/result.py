"""The result of a call as text for the model."""

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp_types import CallToolResult


def result_text(result: "CallToolResult") -> str:
    """Return the texts of a result; other contents are only named."""
    parts = [_part(block) for block in result.content]
    if not parts and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, ensure_ascii=False)]
    text = "\n\n".join(parts) or "(no content)"
    return f"Error: {text}" if result.is_error else text


def shortened(text: str, max_characters: int) -> str:
    """Return at most about `max_characters` of a text; it says how much is left out."""
    if len(text) <= max_characters:
        return text
    return f"{text[:max_characters]}\n… ({len(text) - max_characters} more characters left out)"


def _part(block: Any) -> str:
    match block.type:
        case "text":
            return str(block.text)
        case "resource":
            text = getattr(block.resource, "text", None)
            return f"({block.resource.uri}, not text)" if text is None else str(text)
        case "resource_link":
            return str(block.uri)
        case "image" | "audio":
            return f"({block.type}, {block.mime_type}, not shown to the model)"
    return f"({block.type})"
