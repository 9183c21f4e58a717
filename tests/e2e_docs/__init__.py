"""The commands of the documents, run as they are printed."""
