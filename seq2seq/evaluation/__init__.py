"""Metrics of models and translations, comparisons of systems, and reranking."""
