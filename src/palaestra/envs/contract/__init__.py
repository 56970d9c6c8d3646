"""The contract: what environments promise, and how specs, rows, seeds and actions are laid out."""
