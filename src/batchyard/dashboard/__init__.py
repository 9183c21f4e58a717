"""The dashboard: view models computed on the server, and the static files of the page that shows them."""
