"""A recipe sized for a corpus and a machine: `seq2seq new`."""
