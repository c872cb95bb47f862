-- position_base returns the epoch, and the position of the first event of transaction 0, if there
-- were one; see feed.go.
SELECT epoch, position_base - (xid_base << 14) FROM tapestore.store
