"""Benchmarks of slotline against plain ways of doing the same, in one process (``slotline bench``)."""
