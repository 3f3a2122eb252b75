"""The testbed and the experiments: real Squid, Apache and wget on real kernels, in network namespaces."""
