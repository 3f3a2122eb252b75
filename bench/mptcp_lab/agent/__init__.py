"""What runs on the hosts of an experiment: the standard library alone, Python 3.9 or newer.

Over ssh this folder is copied to the host and run there as package ``agent``; hence relative imports only, and
nothing outside it.
"""
