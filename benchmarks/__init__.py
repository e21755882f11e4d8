"""Ratios, measured in one run: the machine is noisy, so nothing here is compared with a number from another day."""
