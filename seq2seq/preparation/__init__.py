"""Preparation of corpora: reading, cleaning, splitting, tokenizer training and encoding."""
