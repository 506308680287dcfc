"""Sizes of known models, as their `config.json` files have them."""
