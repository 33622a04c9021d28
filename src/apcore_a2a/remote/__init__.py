"""Remote agents as local apcore modules: the client on one side, apcore on the other."""
