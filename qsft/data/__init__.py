"""From a data set, local or on the Hub, to input_ids and labels."""
