"""Speculative decoding measured: the reference decoder, plain decoding, floors and the verdict."""
