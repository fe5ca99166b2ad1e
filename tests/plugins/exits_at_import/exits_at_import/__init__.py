"""Broken on purpose: ends the process while it is imported, as some vendors' start-up code does."""

raise SystemExit(3)
