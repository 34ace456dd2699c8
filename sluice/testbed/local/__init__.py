"""The local stack: a real broker and the embedded engine, for demo, bench and development."""
