"""Broken on purpose: fails while it is imported."""

raise ImportError("x marks the broken driver")
