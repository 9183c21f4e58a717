"""Backups and continuous archives in folders and object storage, and point-in-time restore from them."""
