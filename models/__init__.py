"""The demonstration model and how it was trained. No service imports this package."""
