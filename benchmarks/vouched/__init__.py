"""The study behind the candidate row `vouched`: see PROTOCOL.md."""
