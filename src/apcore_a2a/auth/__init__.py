"""Who is calling: one small protocol, and the JWT that most people bring."""
