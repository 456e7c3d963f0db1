"""Operations with faster implementations on a CPU than torch's own."""
