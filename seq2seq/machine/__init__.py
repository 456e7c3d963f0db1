"""What this machine computes with, and how it does so best: precision, threads, features."""
