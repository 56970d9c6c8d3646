"""Worlds of our own: small ones whose best values are known, and games as tensors."""
