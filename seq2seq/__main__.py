"""`python -m seq2seq` is the `seq2seq` command."""

from seq2seq.cli import main

if __name__ == "__main__":
    main()
