"""Devices, precision, threads and memory of this machine."""
