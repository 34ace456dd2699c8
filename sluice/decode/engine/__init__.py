"""The embedded engine: its session, the bytes of its blocks, its types and expressions."""
