"""Documents: which parts of a file are text, and where their translations belong."""
