"""Translation, text generation and classification with trained models."""
