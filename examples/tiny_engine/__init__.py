"""A small serving engine on slotline: a real model, paged KV cache, chunked prefill, speculation, two roles."""
