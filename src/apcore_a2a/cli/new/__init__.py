"""`apcore-a2a new`: a small project with an agent, its test and a Dockerfile."""
