"""Texts that list tools in the system message, for templates that do not; `TOOLS` is the list."""

SMOLLM3 = """\
You may call functions to answer. Their signatures are in <tools></tools> tags:

<tools>
TOOLS
</tools>

For each call, write a JSON object with the name of the function and its arguments:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""

# As in the template that llama.cpp has for R1.
DEEPSEEK_R1 = """\
You can call any of the following function tools to satisfy the user's requests:

TOOLS

Example function tool call syntax:

<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>example_function_name
```json
{"arg1": "some_value"}
```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"""

# As the model's card says.
DEEPSEEK_V3_1 = """\
## Tools
You have access to the following tools:

TOOLS

IMPORTANT: ALWAYS adhere to this exact format for tool use:
<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>tool_call_arguments\
<｜tool▁call▁end｜>{{additional_tool_calls}}<｜tool▁calls▁end｜>

Where:

- `tool_call_name` must be an exact match to one of the available tools
- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema
- For multiple tool calls, chain them directly without separators or spaces"""
