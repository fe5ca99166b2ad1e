"""Replay: a request trace through a continuous-batching scheduler into the buffers of a backend, checked."""
