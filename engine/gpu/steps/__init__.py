"""Steps on a GPU: captured graphs, async decode, pipeline decode, captured prefill."""
