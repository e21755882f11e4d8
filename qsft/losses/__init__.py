"""From a target Q to a number and a gradient."""
