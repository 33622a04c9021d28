"""`python -m apcore_a2a` is the `apcore-a2a` command."""

if __name__ == "__main__":
    from apcore_a2a.cli import main

    main()
