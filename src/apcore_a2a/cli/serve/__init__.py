"""The commands `serve` and `dev`: targets, authentication, reload and worker processes."""
