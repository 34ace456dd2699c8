"""What is about Spark itself: its session, its jobs, the archive of its classes."""
