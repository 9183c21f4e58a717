"""What an operator answers where an API server elsewhere asks it about objects: which webhooks, and their answers."""
