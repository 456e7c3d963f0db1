"""Preparation of corpora: reading, cleaning, splitting, tokenizer training, encoding."""
