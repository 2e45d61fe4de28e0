"""The life of a measurement: client, streams, load, prompts, guards."""
