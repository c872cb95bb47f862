-- epoch_list returns the epochs in order, with the time and the reason of each.
SELECT epoch, at, reason FROM tapestore.epochs ORDER BY epoch
