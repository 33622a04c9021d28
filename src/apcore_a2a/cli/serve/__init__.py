"""`serve`, `dev`: what is served, how it is reloaded, and by how many processes."""
