"""Answers of the status socket, built in a child of the daemon from what the daemon knew at that moment."""
