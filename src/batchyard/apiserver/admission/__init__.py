"""Admission of write requests by webhooks and policies that users install."""
