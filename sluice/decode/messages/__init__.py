"""The messages of one range as bytes, and what every decoder of them shares."""
