"""Ratios measured in one run: on a shared machine, times of different runs cannot be compared."""
