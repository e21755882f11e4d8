"""Where the teacher's distribution comes from: a cache on disk or a live model."""
