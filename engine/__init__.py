"""Token ids in, token ids out: scheduler, KV blocks, sampler, decoder, worker process."""
