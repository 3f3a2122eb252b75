"""The ports to the kernel and the adapters behind them. Nothing else changes or asks the kernel."""
