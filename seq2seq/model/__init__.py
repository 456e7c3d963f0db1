"""The Transformer."""
