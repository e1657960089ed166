"""What is done for people who are away: programs' tokens and what was answered to their keys; standing wishes."""
