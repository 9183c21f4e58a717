"""Why something waits, or is as it is: answers put together from what the controllers know."""
