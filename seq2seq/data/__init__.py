"""Corpora, tokenizers, prepared data and batches."""
