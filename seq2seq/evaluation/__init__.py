"""How good a model and its translations are."""
