"""From a hub data set to input_ids and labels."""
