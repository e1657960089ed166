"""What reports and lists of the console read.

Belongs here: reads of much at once, and the sums that are made for them.
"""
