"""How an effect is carried out at most once: its key, claims, leases, outcomes, recovery, and replays."""
