"""Packed SigLIP2 vision encoder: patches of many images in, one vector each out."""
