-- purge_newest returns the highest number in garbage, NULL if there is none.
SELECT max(run) FROM garbage
