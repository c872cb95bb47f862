-- clock_now returns the time of the store clock.
SELECT CURRENT_TIMESTAMP() AS Now
