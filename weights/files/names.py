"""The names of a Hugging Face directory's weight files, one file or several with their index."""

__all__ = ["INDEX", "SINGLE", "TORCH_INDEX", "TORCH_SHARDS", "TORCH_SINGLE"]

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
# What torch.save wrote, before there were safetensors.
TORCH_SINGLE = "pytorch_model.bin"
TORCH_INDEX = "pytorch_model.bin.index.json"
TORCH_SHARDS = "pytorch_model*.bin"
