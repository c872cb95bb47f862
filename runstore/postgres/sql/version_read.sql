-- version_read returns the version of the server.
SELECT current_setting('server_version')
