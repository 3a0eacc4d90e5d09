"""Forward passes that compute every distinct token once: packing, tree attention and KV caches."""
