"""A translation server that clients of LibreTranslate and DeepL can use."""
