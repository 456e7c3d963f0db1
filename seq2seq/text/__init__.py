"""Changes of text: augmentation, protected spans, sentences."""
