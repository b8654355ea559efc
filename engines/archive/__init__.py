"""The archive: published saves on their way to an object store, back, and away from a disk.

    declaration.py   `.posttrain-archive.json`: what an archive will hold, said before any of it is sent
    receipt.py       `.uploaded`: what was archived, and where, said beside the local manifest
    publisher.py     a local directory into the store          `milepost publish`, and the trainer
    reader.py        an archive into a new local directory     `milepost fetch`
    releasing.py     local payload whose archive was proven    `milepost prune-verified`
    moving.py        any objects, as they are                  `milepost copy`, `milepost download`

Rules that all of them keep:

1. Bytes are proven by size and digest where they arrive and where they stay. That two versions or two sizes are equal
   proves nothing of two objects; their bytes are read.
2. What is there and is something else is refused and never replaced.
3. A manifest becomes visible behind everything that it lists, in a store and on a disk (INV-01).
4. Whatever was interrupted is called again and goes on from what is proven to be there.
5. No file, message or record holds a credential.
"""
