-- epoch_list returns the epochs in order, with the time in microseconds and the reason of each.
SELECT epoch, at, reason FROM epochs ORDER BY epoch
