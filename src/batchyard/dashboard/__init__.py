"""The dashboard: JSON documents computed on the server, and the static files of the web page that shows them."""
