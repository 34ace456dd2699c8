"""What is made of a message's value before its format reads it."""
