"""The ``llmperf`` command: one file a verb."""
