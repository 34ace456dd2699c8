"""`sluice prove` on real servers."""
