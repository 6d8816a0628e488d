"""``python -m ackpost``."""

from ackpost.cli import main

main()
