"""The page: models of what a platform does, made on the server, and the files that show them."""
