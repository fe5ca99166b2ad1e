"""Kunlun and Intel XPUs."""
