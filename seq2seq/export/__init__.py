"""Export of models to the formats of other programs."""
