"""Help pages about engines: GPUs, running engines, remote ones."""

from swiftchat.chat.help.page import Page

_MODELS = """\
  swiftchat models                    list the models that fit this machine, best first
  swiftchat models qwen3              list all forms of the models of that name
  swiftchat models --refresh          ask the hub for popular models beyond these
  swiftchat use qwen3:8b              download it and make it the default
  swiftchat use                       pick one from a list; so does /model
  swiftchat download qwen3:8b         download only; also OWNER/NAME, and pull
  swiftchat download OWNER/NAME:Q4_K_M    one type of a repository of GGUF files
  swiftchat download OWNER/NAME:4bit  quantize it while it is downloaded; also :8bit
  swiftchat -m qwen3:8b               chat with it; also: swiftchat run qwen3:8b
  swiftchat list                      list the models on this machine; also: ls
  swiftchat show qwen3:8b             its memory needs, and what fits here
  swiftchat rm qwen3:8b               delete it

Files that you have run from where they are:

  swiftchat -m ./model.gguf
  swiftchat -m ./directory            with config.json and *.safetensors or *.bin

Forms that run: plain weights (*.safetensors, *.bin), GGUF with all types of
llama.cpp that hold weights, but for Q2_0, GPTQ, AWQ, FP8, NVFP4, MXFP4,
compressed-tensors and bitsandbytes.

A short name is FAMILY:SIZE, where the size counts the parameters, and means the
published files of 4 bits for each weight, or the original where there are none;
qwen3:8b-8bit and qwen3:8b-16bit mean the others.

OWNER/NAME:4bit and :8bit mean the GGUF files of that size, or else what convert
--quantize int4 or int8 makes, one weight file at a time, during the download.

A name without :TYPE, of a repository that has GGUF files only, means Q4_K_M or
a type near it; in a terminal you are asked. Addresses as typed from a browser
work too: https://huggingface.co/OWNER/NAME/blob/main/FILE.gguf

Images do not run here yet. The vision part of GGUF files (mmproj-F16.gguf) is
not downloaded, except with --with-images, for other programs; list and rm count
it to the model that it lies beside.

Without -m, and without model in the configuration file, the model is
{{default_model}}, and a chat in a terminal offers others. Models
are stored in {{models_folder}} and in huggingface_hub's cache.

docs/models.md lists the architectures that run. Some models need a license
that you accept on their page on huggingface.co, and your token in HF_TOKEN.
"""

_GPU = """\
NVIDIA GPUs of compute capability 8.0 or newer run swiftchat's own kernels,
compiled on first use. Older GPUs run torch's operators. Without a GPU, models
run on the CPU.

  pip install 'swiftchat[cuda]'       install compiler, headers and bindings
  swiftchat doctor                    check the installation
  swiftchat doctor -m NAME            show what computes each part of a model
  swiftchat show NAME                 show the memory that a model needs
  swiftchat -m NAME --device cuda:1   use only this GPU
  swiftchat -m NAME --tp 2            use two GPUs; --tp auto: as few as needed
  swiftchat -m NAME --gpu-memory 8GiB use less of the GPU
  swiftchat -m NAME --ctx-size 8192   use a smaller KV cache to save memory
  swiftchat bench -m NAME             measure the speed

Experts that a GPU does not hold stay in main memory, where the CPU computes
them: as few as possible, or those of N layers with --cpu-experts N.
"""

_SERVE = """\
Chats and one-shots use a running engine with the same model and the same
engine options instead of loading the model.

  swiftchat -p "Hi" --keep-alive 10m  leave the engine running until it is not
                                      used for 10 minutes
  swiftchat -p "Hi"                   answers at once
  swiftchat serve qwen3:8b            keep a model loaded until Ctrl-C
  swiftchat serve -d qwen3:8b         keep it in the background until stop
  swiftchat --no-attach               load the model in any case
  swiftchat ps                        list running engines
  swiftchat stop qwen3:8b             end one; --all: end all

In the configuration file, keep_alive = "10m" is for all chats.

Clients of OpenAI's HTTP API (completions and responses) and of Anthropic's
(messages) can use models too: every installed one, loaded when it is first
asked for, or the one that is named.

  pip install 'swiftchat[serve]'
  swiftchat serve --openai 127.0.0.1:8080
  swiftchat serve qwen3:8b --openai 127.0.0.1:8080
  swiftchat --connect http://127.0.0.1:8080/v1 -m qwen3:8b

They must send the token that is printed at the start, or that of --token-file
or SWIFTCHAT_API_TOKEN; with --no-auth all programs on this machine may use it
without one. --cors ORIGIN is for pages in a browser. Other machines can
connect only with --allow-remote.
docs/serving.md lists what the API can do.
"""

_HOSTS = """\
An engine can run as a server, on this machine or on another, on one GPU or on
all GPUs of several hosts. It keeps running while terminals connect and leave.

On the machine with the GPUs:

  swiftchat-engine NAME --listen 127.0.0.1:4000
  torchrun ... --no-python swiftchat-engine NAME     (docs/several-gpus.md)

It prints its address and the path of its token file. On the same machine:

  swiftchat --connect 127.0.0.1:4000

From another machine, copy the token file once and forward the port:

  scp HOST:.local/state/swiftchat/engine-4000.token FILE
  ssh -f -N -L 4000:127.0.0.1:4000 HOST
  swiftchat --connect 127.0.0.1:4000 --token-file FILE

With --listen ./engine.sock the engine needs no port and no token:

  swiftchat --connect ./engine.sock

The engine determines the model, tokenizer, device and context. Conversations
are saved on your machine. An engine serves up to 16 terminals at once.
"""

_ADAPTERS = """\
A LoRA adapter changes a model that stays as it is. Its files may be those of
PEFT, of mlx-lm, or a GGUF file:

  swiftchat -m NAME --lora DIR        use it for all answers
  swiftchat --lora A=0.5 --lora B     the sum of both, A at half its strength
  swiftchat serve NAME --openai 127.0.0.1:8080 --lora DIR     NAME:ADAPTER for clients
  swiftchat show DIR                  what the adapter is, and for which model
  swiftchat convert NAME NEW --merge-lora DIR      a model with the adapter

Between two messages, while the model stays loaded:

  /lora load DIR[=SCALE]              load an adapter and use it
  /lora use A=0.5 B                   use exactly these
  /lora off                           use the base model
  /lora                               list the adapters

A soft prompt of PEFT (prompt tuning, p-tuning, prefix tuning) precedes every
prompt:

  swiftchat -m NAME --soft-prompt DIR

The adapter must belong to the model: a wrong one is an error with exit code
7 that names the tensor. docs/adapters.md lists what is supported.
"""

ENGINE_PAGES = {
    "models": Page("Downloading and choosing a model, short names", _MODELS),
    "adapters": Page("LoRA adapters and soft prompts", _ADAPTERS),
    "gpu": Page("Running models on GPUs", _GPU),
    "serve": Page("Keeping a model loaded, and the HTTP API", _SERVE),
    "hosts": Page("Remote engines, and engines on several hosts", _HOSTS),
}
