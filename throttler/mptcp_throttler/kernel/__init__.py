"""The ports to the kernel and the adapters behind them. The only package of the throttler that does I/O."""
