"""The one HTTP server of a driver: metrics, health, status, the page, and decisions."""
