"""Which episodes are for what. Episode seeds of training are 64-bit hashes, so they are none of these."""

TUNING = range(10_000, 10_008)
"""Episodes that the parameters of the rules are tuned on."""
HELD_OUT = range(50)
"""Episodes that every policy is compared on; nothing is tuned, trained or chosen by them."""
