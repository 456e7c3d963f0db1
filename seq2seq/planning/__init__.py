"""`seq2seq new`: recipes sized for a corpus and a machine."""
