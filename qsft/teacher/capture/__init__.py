"""Capturing a teacher: plan the batches, divide them over processes, compute them, write shards."""
