"""Models that are made here: the tiny one, and shapes without weights."""

#: What a config writes for the tiny model: ``model="tiny"``.
TINY = "tiny"
#: Seeds its weights; part of the cache folder's name. Raise it whenever the bytes of the recipe change.
RECIPE = 2
#: Tokens of one request to it, prompt and output together.
CONTEXT = 4096
