"""apcore in: modules become skills, messages become calls. The only package that knows apcore."""
