"""Ackpost sends events to other people's servers until they acknowledge them."""

__version__ = "0.1.0"
