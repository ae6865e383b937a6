"""SUBSCRIBE under load: readers that cost little, and what is measured with them."""
