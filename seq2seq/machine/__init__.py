"""Precision, threads and processor features of this machine."""
