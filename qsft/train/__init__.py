"""The only room that knows TRL."""
