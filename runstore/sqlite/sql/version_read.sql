-- version_read returns the version of SQLite.
SELECT sqlite_version()
