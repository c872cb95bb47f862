-- clock_now returns the time of the store clock.
SELECT clock_timestamp()
