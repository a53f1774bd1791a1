"""The names of a Hugging Face directory's weight files, one file or several with their index."""

__all__ = ["SAFETENSORS_FILE", "SAFETENSORS_INDEX", "TORCH_FILE", "TORCH_FILES", "TORCH_INDEX"]

SAFETENSORS_FILE = "model.safetensors"
SAFETENSORS_INDEX = "model.safetensors.index.json"
# What torch.save wrote, before there were safetensors.
TORCH_FILE = "pytorch_model.bin"
TORCH_INDEX = "pytorch_model.bin.index.json"
TORCH_FILES = "pytorch_model*.bin"
