"""Models that are made here: the tiny one, and shapes without weights."""
