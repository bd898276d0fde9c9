"""The composition of credit."""
