"""Help pages about what the model reads and how its tokens are chosen."""

from swiftchat.chat.help.page import Page

_TEMPLATES = """\
A chat template turns messages into the text format that a model was trained
on. Most models contain their template. A model without one gets the template
of its family if the family is certain; otherwise choose a template:

  swiftchat -m old-model --template vicuna
  swiftchat -m old-model --template ./mine.jinja
  swiftchat -m base-model --no-template -p "Once upon a time"

Built in: {{templates}}.

/show template prints the template in use. Templates run in a sandbox, and text
that you type never becomes a control token.
"""

_FILES = """\
Files and pages come before the prompt, each in a block with its name:

  swiftchat -p "Any mistakes?" -f main.py -f 'src/**/*.py'
  swiftchat -p "Sum it up" -f report.pdf#3-7 -f https://example.org/
  >>> /read talk.pptx prices.xlsx

Texts are read as UTF-8, or UTF-16 with a byte order mark. HTML, PDF, docx, pptx
and xlsx become Markdown; #3-7 are pages, slides or sheets. Documents need

  pip install 'swiftchat[documents]'

A document is read by a process of its own, within limits of time and memory.
Macros, pictures and links are left out. Encrypted files, and scans without
text, are errors. A pattern leaves out what is no text, with a note.

swiftchat help knowledge is about folders that are too large for the context.
"""

_KNOWLEDGE = """\
The texts of a folder as knowledge: before each question come the passages that
may answer it, with their marks, so that the answer can cite file:line.

  swiftchat --knowledge docs -p "How long are backups kept?"
  >>> /knowledge ~/notes              index a folder and use it
  >>> /knowledge none                 use none from now on

Texts and documents (swiftchat help files) are indexed; hidden files, links and
what .gitignore names are not. The index is made at the first question, and only
files that have changed are read again. Ctrl-C stops it; what is indexed stays.

The passages of a question are named below it and are part of the message: -c,
/regen and branches repeat them exactly, and later questions get only new ones.
They have at most --knowledge-tokens (1500) tokens and a quarter of the context,
those of a whole conversation half of it.

Passages are found by their words. --knowledge-model NAME adds embeddings of a
model: one that was made for embeddings also finds other words for the same
thing; those of a chat model are worse than the words alone. --knowledge-pooling
last is for models whose card says so, such as Qwen3-Embedding.

The folder is saved with the conversation. The index is a copy of the texts that
only you can read; swiftchat cache clear removes it.
"""

_FORMATS = """\
An answer can be limited to a format. Tokens that would leave it are never
chosen, so the answer always matches, whatever the model and the temperature.

  swiftchat -p "Describe Bob." --schema person.json   a JSON schema
  swiftchat -p "Describe Bob." --schema '{"type": …}'  the schema itself
  swiftchat -p "Describe Bob." --json-object          any JSON object
  swiftchat -p "When?" --regex '[0-9]{4}-[0-9]{2}'    a regular expression
  swiftchat -p "Yes or no?" --grammar answer.lark     a grammar, Lark or GBNF
  >>> /schema person.json

What --schema, --grammar and embed take is the name of a file if that exists,
otherwise a text; a word that looks like the name of a file and is none is an
error. What -p and -s take is always a text, what -f takes never.

The schema is also added to the system prompt, unless --no-schema-prompt is
given. A model that thinks does so freely; the format applies to its answer.

With a schema or --json-object, stdout receives exactly one JSON document. If
the context or -n ends the answer before, stdout stays empty, the incomplete
answer is on stderr, and the exit code is 5.

An object has the properties that its schema declares and no others, unless
"additionalProperties" says so; numbers have at most 18 digits (15 and 9
decimals) unless "minimum" or "maximum" ask for more. A "format" that is not
enforced has no effect: enforced are date-time time date duration email
hostname ipv4 ipv6 uuid uri.

A schema with a keyword that cannot be enforced, such as "not", is an error
that names its place.
"""

_THINKING = """\
Many models think before they answer. --think sets what the model's chat
template can set: on and off, or low, medium, high and max. Another level is an
error that names those it has; auto leaves the choice to the template.

  swiftchat --think off
  >>> /think high
  >>> /reasoning                       the thinking before the last answer

--reasoning-budget ends it after so many tokens, with the text by which the
model itself goes over to the answer; the line below the answer then says
"thinking 412/1024". With a budget, -n counts only the answer; without one, -n
counts the thinking too. 0 means none at all.

  swiftchat --reasoning-budget 1024 -n 500
  swiftchat --reasoning-budget 1024 \\
      --reasoning-budget-message "I have to answer now."
  >>> /set reasoning_budget 256
  >>> /set reasoning_budget off

--template-arg sets any other variable of the template, as JSON or as text; it
comes before --think.

  swiftchat --template-arg keep_thinking=true

Whether a model sees its earlier thinking is up to its template. What the
template repeats is found in the KV cache, and not computed again.
"""

_SAMPLING = """\
Each token is chosen in this order:

  1  logit_bias is added to the logits
  2  repeat_penalty, presence_penalty and frequency_penalty, of the last
     repeat_last_n tokens; then dry
  3  bans: no_repeat_ngram, ban, and end tokens before min_tokens
  4  temperature; 0 takes the most probable token and ends here
  5  filters: top_n_sigma, top_k, typical_p, min_p, top_p, xtc

A parameter is a flag (--top-k 40), a variable (SWIFTCHAT_TOP_K=40), a line of
the configuration file or of a role (top_k = 40), or is set at the prompt:

  >>> /set top_k 40
  >>> /set stop "\\n\\n"
  >>> /set ban delve
  >>> /set logit_bias yes=5
  >>> /set top_k off

ban bans the usual tokens of a text, with and without a space before it; other
spellings stay possible. logit_bias changes single tokens that write the text,
with and without a space. In files, several texts are a list: ban = ["a", "b"].

Parameters that you do not set come from the model's generation_config.json;
off returns to them. Print the probability of each token, before all steps:

  swiftchat -p "Heads or tails?" --logprobs 3 --json
  >>> /set logprobs 5
  >>> /show alternatives

--beams 4 looks for the answer with the highest score (beam search), which is
shown when it is complete; --samples 2 shows the best two. --length-penalty and
--early-stopping change which one is the best, and when the search ends;
--diversity-rate 1 makes the beams differ more.

Speculative decoding makes answers faster that repeat parts of the conversation:
tokens are proposed, and one step verifies several of them. speculate = auto
proposes what followed the same tokens before; off switches it off. More comes
from --draft MODEL, a small model; --draft DIRECTORY, heads that were trained for
the model; --draft mtp, heads that are part of it. --stats shows the acceptance.

swiftchat help parameters lists all of them.
"""

_CONTEXT = """\
The context is the number of tokens that a model reads at a time: --ctx-size,
by default the model's own, if it fits into memory. --overflow says what happens
when it is full:

  error        a prompt that does not fit is an error (exit code 5), and an
               answer ends at the full context; the default
  drop-oldest  the oldest turns are left out of a prompt; an answer ends
  sliding      as drop-oldest; an answer goes on without the middle of the
               context: the first tokens and the newest ones stay

  swiftchat --overflow sliding
  >>> /set overflow sliding
  >>> /set overflow_keep 200

--overflow-keep is the number of first tokens that stay; by default those of the
system prompt. One line, and dropped_tokens in JSON, report what was left out.
/compact replaces old turns by a summary.
"""

_PARAMETERS = """\
Names for flags, variables, files and /set; swiftchat help sampling says how
they work together.

{{parameters}}
"""

ANSWER_PAGES = {
    "templates": Page("Chat templates", _TEMPLATES),
    "files": Page("Files, pages and documents before a prompt", _FILES),
    "knowledge": Page("A folder whose passages precede each question", _KNOWLEDGE),
    "formats": Page("JSON schemas, regular expressions and grammars", _FORMATS),
    "thinking": Page("How long a model thinks before it answers", _THINKING),
    "sampling": Page("Temperature and other sampling options, logprobs", _SAMPLING),
    "context": Page("What happens when the context is full", _CONTEXT),
    "parameters": Page("All sampling parameters", _PARAMETERS),
}
