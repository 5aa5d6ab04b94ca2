"""The embedmill stage: image shards in, embedding shards out."""
