"""Requests that nobody should send: made from a seed, so that each can be sent again."""
