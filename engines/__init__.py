"""Everything that touches a disk, a bucket, a tensor, a signal, a clock or another rank."""
