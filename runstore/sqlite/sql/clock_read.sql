-- clock_read returns the clock of the store: the boot of the host in which it was set, how long the
-- host had been up then in nanoseconds, the time then, and the latest time that was written. Times
-- are in microseconds.
SELECT clock_boot, clock_since, clock_at, clock_seen FROM store
