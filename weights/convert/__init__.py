"""Convert a model source to a Hugging Face directory."""
