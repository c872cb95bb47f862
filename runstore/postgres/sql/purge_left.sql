-- purge_left reports whether garbage of any purge is left.
SELECT EXISTS (SELECT FROM tapestore.garbage)
