"""Flower as this pool runs it."""
