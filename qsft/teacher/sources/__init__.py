"""Kinds of teachers that a capture can run, behind one interface."""
