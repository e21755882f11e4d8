"""Pictures as self-contained HTML pages."""
