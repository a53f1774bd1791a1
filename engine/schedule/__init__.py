"""Which tokens a forward pass computes, and the KV blocks they are kept in."""
