"""Model directories and the formats of other programs: reading and writing side by side."""
