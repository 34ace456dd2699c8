"""Where claims are kept (R20): one port, and the stores behind it."""
