"""Several runs together: sweeps, the report over all evaluated runs, and the evaluation of the untrained student."""
