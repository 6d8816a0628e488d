"""Ackpost."""
