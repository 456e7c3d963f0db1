"""What is faster on a CPU than the ways of torch."""
