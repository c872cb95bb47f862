-- epoch_list returns the epochs in order, with the time in microseconds and the reason of each. For
-- epoch 0 see unsynced_set.
SELECT epoch, at, reason FROM epochs WHERE epoch > 0 ORDER BY epoch
