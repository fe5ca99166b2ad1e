"""Examples, run from the repository's root: ``python -m examples.tiny_engine``."""
