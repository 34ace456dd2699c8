"""What every format makes of fixed messages, and the words about those that it refuses.

`make golden` writes `outcomes/` anew, a file for each format; `test_golden.py` compares. Whoever
changes an outcome says why, and raises `sluice.decode.RULES`.
"""
