"""What milepost costs, beside what the machine can do and what its peers take: `python -m benchmarks`.

1. Everything of ours is measured through the public facade, as a training loop uses it. Peers are called as their
   documentation says, and a peer that syncs nothing is synced by the benchmark: only durable bytes are compared.
2. The cases of a figure run in turn, in one process, and in reverse order every other round; a ratio is the median
   of the ratios within each round. A machine drifts by half during an hour; what happens within a round hardly does.
3. Free memory is touched before each case. A virtual machine hands free pages back to its host, and the first touch
   afterwards costs seconds a GiB: nothing else would be measured.
4. Each bar is judged by the measurement and written down as met or missed. A missed one comes with a profile.
"""
