"""The protocol buffers of A2A without a library: tables of fields, and a codec between their bytes and ProtoJSON."""
