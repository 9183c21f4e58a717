"""Container images: container engines, image pulls, unpacking, and the store of unpacked root filesystems."""
