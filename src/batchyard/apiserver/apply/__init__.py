"""Field ownership (`managedFields`) and server-side apply."""
