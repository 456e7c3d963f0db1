"""From trained weights to text."""
