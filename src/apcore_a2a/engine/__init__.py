"""The engine: it runs tasks, keeps their logs and serves their readers. It knows one model and no protocol."""
