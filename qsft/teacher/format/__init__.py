"""The cache on disk: encoding of a document, shards, manifest. docs/cache_format.md describes it byte by byte."""
