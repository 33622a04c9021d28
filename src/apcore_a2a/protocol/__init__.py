"""The A2A protocol without IO: model, lifecycle, dialects, framing. Bytes and values in, bytes and values out."""
