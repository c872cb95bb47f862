-- epoch_read returns the epoch.
SELECT epoch FROM store
