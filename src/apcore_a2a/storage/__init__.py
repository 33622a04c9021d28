"""Where tasks are kept: one contract, several engines, unaware of each other."""
