"""Where a2a-sdk meets the model: its protobuf messages, and the executors written for it. Needs the extra `sdk`."""
