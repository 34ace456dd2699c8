"""Instruments: what tries, measures and shows the loader. The loader itself never imports it."""
