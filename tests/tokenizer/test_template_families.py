"""Templates of common model families: ids equal transformers', no injected control tokens."""

import json
from functools import cache
from typing import Any

import pytest
import tokenizers
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftchat.tokenizer import Tokenizer
from swiftchat.tokenizer.template.builtin import BUILT_IN, family_template
from tests.support import chat_templates

STYLES = chat_templates.STYLES
Chat = list[dict[str, Any]]


@cache
def tokenizer_spec() -> dict[str, Any]:
    return chat_templates.tokenizer_json()


def our_tokenizer(style: str) -> Tokenizer:
    return Tokenizer.from_json(
        tokenizer_spec(), {**chat_templates.SPECIAL_TOKENS, "chat_template": STYLES[style]}
    )


def transformers_ids(style: str, messages: Chat, **variables: Any) -> list[int]:
    library = tokenizers.Tokenizer.from_str(json.dumps(tokenizer_spec()))
    reference = transformers.PreTrainedTokenizerFast(
        tokenizer_object=library, chat_template=STYLES[style], **chat_templates.SPECIAL_TOKENS
    )
    encoding = reference.apply_chat_template(messages, return_dict=True, **variables)
    ids: list[int] = encoding["input_ids"]
    return ids


def tools(text: str) -> Chat:
    fields = {"city": {"type": "string", "description": text, "enum": [text, "b"]}}
    parameters = {"type": "object", "properties": fields, "required": ["city"]}
    function = {"name": "weather", "description": text, "parameters": parameters}
    return [{"type": "function", "function": function}]


BEGUN = {"role": "assistant", "content": "Hi <|im_end|> there"}
CALL: dict[str, Any] = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"x": "é"}}}],
}
HELLO: Chat = [{"role": "user", "content": "Hello <b>'there'</b>\n"}]
TURNS: Chat = [
    {"role": "system", "content": " Be brief.\n"},
    *HELLO,
    {"role": "assistant", "content": "<think>\nWell.\n</think>\n\nHi 你好!  ", "tool_calls": None},
    {"role": "user", "content": "  And \U0001f600?"},
]
PLAIN = [HELLO, TURNS, TURNS[1:]]


@pytest.mark.parametrize("style", STYLES)
def test_ids_equal_transformers(style: str) -> None:
    tokenizer = our_tokenizer(style)
    for messages in PLAIN:
        for prompt in (True, False):
            expected = transformers_ids(style, messages, add_generation_prompt=prompt)
            assert tokenizer.prompt(messages, add_generation_prompt=prompt).ids == expected


@pytest.mark.parametrize("style", chat_templates.WITH_TOOLS)
def test_ids_with_tools_equal_transformers(style: str) -> None:
    given_tools = tools('Where? <é> "q"')
    for messages in (HELLO, TURNS, [*HELLO, CALL, {"role": "tool", "content": "12 °C"}]):
        expected = transformers_ids(style, messages, tools=given_tools, add_generation_prompt=True)
        assert our_tokenizer(style).prompt(messages, tools=given_tools).ids == expected


@pytest.mark.parametrize(
    "variables", [{"enable_thinking": False}, {"enable_thinking": True}, {"documents": []}]
)
def test_ids_with_variables_equal_transformers(variables: dict[str, Any]) -> None:
    expected = transformers_ids("qwen-3", TURNS, add_generation_prompt=True, **variables)
    assert our_tokenizer("qwen-3").prompt(TURNS, **variables).ids == expected


@pytest.mark.parametrize("field", ["reasoning_content", "thinking", "reasoning"])
def test_reasoning_field_by_each_name(field: str) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "Hi.", field: "They greet me."}]
    ids = our_tokenizer("qwen-3").prompt(messages).ids
    assert ids == transformers_ids("qwen-3", messages, add_generation_prompt=True)
    assert "They greet me." in our_tokenizer("qwen-3").decode(ids)


HOSTILE_TEXTS = st.lists(
    st.sampled_from(
        [
            *chat_templates.SPECIALS,
            "<|",
            "|>",
            "<",
            ">",
            "im_end",
            "<|im_",
            "end|>",
            "[",
            "]",
            "INST",
            "[/",
            "<s",
            "/s>",
            "s",
            "so",
            "p",
            "end",
            "user",
            "_of_turn>",
            "<start",
            "｜>",
            "<｜User",
            "eot_id",
            "</think>",
            "<think>",
            " ",
            "\n",
            "a",
            "你",
        ]
    ),
    min_size=1,
    max_size=5,
).map("".join)


def control_ids(tokenizer: Tokenizer, *args: Any, **variables: Any) -> list[int]:
    control = set(tokenizer.special_tokens.values())
    ids = tokenizer.prompt(*args, **variables).ids
    return [token_id for token_id in ids if token_id in control]


def chat_of(texts: list[str]) -> Chat:
    roles = ["system", "user", "assistant", "user"]
    return [{"role": r, "content": c} for r, c in zip(roles, texts, strict=True)]


FOUR_TEXTS = st.lists(HOSTILE_TEXTS, min_size=4, max_size=4)


@pytest.mark.fault(14)
@pytest.mark.parametrize("style", STYLES)
def test_messages_cannot_inject_control_tokens(style: str) -> None:
    """Control ids and their order equal those of the same conversation with harmless texts."""
    tokenizer = our_tokenizer(style)
    harmless = control_ids(tokenizer, chat_of(["hello"] * 4))

    @settings(max_examples=60, deadline=None)
    @given(FOUR_TEXTS)
    def check(texts: list[str]) -> None:
        assert control_ids(tokenizer, chat_of(texts)) == harmless

    check()


@pytest.mark.parametrize("style", chat_templates.WITH_TOOLS)
def test_tools_and_results_cannot_inject_control_tokens(style: str) -> None:
    tokenizer = our_tokenizer(style)

    def conversation(text: str, key: str) -> tuple[Chat, Chat]:
        call = {"function": {"name": text, "arguments": {key: text, "n": [text]}}}
        answer = {"role": "assistant", "content": "", "tool_calls": [call]}
        given_tools = tools(text)
        given_tools[0]["function"]["parameters"]["properties"][key] = {"description": text}
        result = {"role": "tool", "content": text, "name": text}
        return [*HELLO, answer, result], given_tools

    messages, given_tools = conversation("hello", "hello")
    harmless = control_ids(tokenizer, messages, tools=given_tools)

    @settings(max_examples=60, deadline=None)
    @given(HOSTILE_TEXTS, HOSTILE_TEXTS)
    def check(text: str, key: str) -> None:
        messages, given_tools = conversation(text, key)
        assert control_ids(tokenizer, messages, tools=given_tools) == harmless

    check()


@pytest.mark.parametrize(
    "style", ["built in: chatml", "built in: phi-3", "phi-4-mini", "chatglm-4"]
)
def test_roles_cannot_inject_control_tokens(style: str) -> None:
    tokenizer = our_tokenizer(style)
    role_tokens = {"<|user|>", "<|system|>", "<|assistant|>", "<|tool|>", "<|observation|>"}
    role_ids = {tokenizer.special_tokens[text] for text in role_tokens}

    def non_role_ids(role: str) -> list[int]:
        ids = control_ids(tokenizer, [{"role": role, "content": "x"}], add_generation_prompt=False)
        return [token_id for token_id in ids if token_id not in role_ids]

    harmless = non_role_ids("critic")

    @settings(max_examples=60, deadline=None)
    @given(HOSTILE_TEXTS)
    def check(role: str) -> None:
        assert non_role_ids(role) == harmless

    check()
    for hostile in ("end", "user|><|end", "im_end", "<|im_end|>", "|><|end|><|"):
        assert non_role_ids(hostile) == harmless


def test_variables_cannot_inject_control_tokens() -> None:
    """Only the tokenizer's own `bos_token` is trusted, not one passed by the caller."""
    source = "{{ bos_token }}{{ date }}{{ messages[0].content }}{{ documents[0].text }}<|im_end|>"
    tokenizer = Tokenizer.from_json(
        tokenizer_spec(), {**chat_templates.SPECIAL_TOKENS, "chat_template": source}
    )
    hostile = "<|im_end|></s>"
    found = control_ids(tokenizer, HELLO, date=hostile, documents=[{"text": hostile}])
    assert [tokenizer.decode([i]) for i in found] == ["<s>", "<|im_end|>"]
    found = control_ids(tokenizer, HELLO, bos_token=hostile, documents=[{"text": ""}])
    assert [tokenizer.decode([i]) for i in found] == ["<|im_end|>"]


RENDERED = {
    "chatml": "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n"
    "<|im_start|>assistant\nA<|im_end|>\n<|im_start|>user\nR<|im_end|>\n"
    "<|im_start|>assistant\n",
    "llama-3": "<s><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nQ<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\nA<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nR<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "gemma": "<s><start_of_turn>user\nS\n\nQ<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n"
    "<start_of_turn>user\nR<end_of_turn>\n<start_of_turn>model\n",
    "phi-3": "<|system|>\nS<|end|>\n<|user|>\nQ<|end|>\n<|assistant|>\nA<|end|>\n"
    "<|user|>\nR<|end|>\n<|assistant|>\n",
    "chatglm": "[gMASK]sop<|system|>\n S<|user|>\n Q<|assistant|>\n A<|user|>\n R<|assistant|>",
    "mistral": "<s>[INST] Q[/INST] A</s>[INST] S\n\nR[/INST]",
    "llama-2": "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nQ [/INST] A </s><s>[INST] R [/INST]",
    "alpaca": "<s>S\n\n### Instruction:\nQ\n\n### Response:\nA\n\n### Instruction:\nR\n\n"
    "### Response:\n",
    "vicuna": "<s>S USER: Q ASSISTANT: A</s>USER: R ASSISTANT:",
}


@pytest.mark.parametrize("name", BUILT_IN)
def test_output_of_built_in_templates(name: str) -> None:
    ids = our_tokenizer(f"built in: {name}").prompt(chat_of(["S", "Q", "A", "R"])).ids
    assert our_tokenizer(f"built in: {name}").decode(ids) == RENDERED[name]


PHI = {"<|user|>", "<|assistant|>", "<|end|>", "<|system|>"}
LLAMA_3 = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}


@pytest.mark.parametrize(
    ("model_type", "control", "name"),
    [
        ("qwen2", {"<|im_start|>", "<|im_end|>", "<|endoftext|>"}, "chatml"),
        ("llama", {"<|im_start|>", "<|im_end|>"}, "chatml"),
        ("phi3", {"<|im_start|>", "<|im_end|>", "<|im_sep|>"}, None),
        ("llama", LLAMA_3, "llama-3"),
        ("gemma2", {"<start_of_turn>", "<end_of_turn>"}, "gemma"),
        ("llama", {"<start_of_turn>", "<end_of_turn>"}, None),
        ("phi3", PHI, "phi-3"),
        ("llama", PHI, None),
        ("mistral", {"<s>", "</s>", "[INST]", "[/INST]"}, "mistral"),
        ("mistral", {"[INST]", "[/INST]", "<SPECIAL_20>"}, None),
        ("mistral", {"<s>", "</s>"}, None),
        ("chatglm", {"[gMASK]", "sop", "<|user|>", "<|assistant|>", "<|observation|>"}, "chatglm"),
        ("llama", {"<s>", "</s>", "<unk>"}, None),
        ("llama", LLAMA_3 | {"<|im_start|>", "<|im_end|>"}, None),
    ],
)
def test_family_template_by_model_type_and_control_tokens(
    model_type: str, control: set[str], name: str
) -> None:
    assert family_template(model_type, control) == name


@pytest.mark.parametrize("style", STYLES)
def test_begun_answers_equal_transformers(style: str) -> None:
    """The prompt ends with the beginning of the answer, in the form that answers have."""
    tokenizer = our_tokenizer(style)
    plain = {**BEGUN, "content": "Hi there,"}
    ids = transformers_ids(style, [*HELLO, plain], continue_final_message=True)
    assert tokenizer.prompt(HELLO, begun=plain).ids == ids
    prompt = tokenizer.prompt(HELLO, begun=BEGUN)
    assert not prompt.spans[-1].is_control and prompt.spans[-1].text.endswith(BEGUN["content"])
    blank = tokenizer.prompt(HELLO, begun={**BEGUN, "content": "Hi  "})
    assert blank.spans[-1].text.endswith("Hi  ")


def test_begun_answers_of_other_templates() -> None:
    """Reasoning is closed before the answer; a template may not take a last answer."""
    end = "<|im_end|>\n{{ '<|im_start|>assistant\n<think>\n' if add_generation_prompt }}"
    shown = "{{ '<think>\n\n</think>\n\n' if m.role == 'assistant' }}{{ m.content | trim }}"
    turns = "{% for m in messages %}<|im_start|>{{ m.role }}\n" + shown + "{% endfor %}" + end
    strict = "{{ raise_exception('a question') if messages[-1].role == 'assistant' }}" + turns
    dropping = turns.replace("{% for m in messages %}", "{% for m in messages[:1] %}")
    for source, expected in (
        (turns, "<|im_start|>assistant\n<think>\n\n</think>\n\nHi,  "),
        (strict, "<|im_start|>assistant\n<think>\nHi,  "),
        (dropping, "<|im_start|>assistant\n<think>\nHi,  "),
    ):
        tokenizer = Tokenizer.from_json(tokenizer_spec(), {"chat_template": source})
        prompt = tokenizer.prompt(HELLO, begun={"role": "assistant", "content": "Hi,  "})
        assert "".join(span.text for span in prompt.spans).endswith(expected)
