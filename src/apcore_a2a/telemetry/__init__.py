"""OpenTelemetry: spans of requests, runs, calls and webhooks, and the metrics as instruments."""
