"""Corpus -> hidden states: the store, its codecs, the preflight; the extract stage."""
